#!/usr/bin/env bash
# Installs Debian's Chromium and its driver with apt where they are missing: the tests open report pages in it.
# Without a browser those tests are skipped; nothing else needs one.
set -euo pipefail
if command -v chromium >/dev/null && command -v chromedriver >/dev/null; then
    exit 0
fi
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    echo "no Chromium here: the tests of report pages in a browser will be skipped (apt-get install chromium chromium-driver)" >&2
    exit 0
fi
export DEBIAN_FRONTEND=noninteractive
(apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium chromium-driver) >/dev/null 2>&1 ||
    echo "Chromium could not be installed: the tests of report pages in a browser will be skipped" >&2
