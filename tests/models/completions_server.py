"""A server of completions around a real model, for tests.

It speaks OpenAI's protocol as vLLM does: prompts of token ids, `echo`, `logprobs`, tokens written
as `token_id:5`. Settings: `faults`, what to do instead of answering, one for each completion in
turn (a status, `drop` the connection, `redirect`, `drip` a byte at a time, None to answer);
`spoil`, a function that changes an answer, or gives bytes in its place; `refuses_no_tokens`;
`no_echo`; `texts` for tokens; `key`, which is quoted where another is given; `max_model_len`.
"""

from __future__ import annotations

import json
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM


def choice(
    model,
    index: int,
    ids: list[int],
    top: int,
    more: int,
    texts: bool,
) -> dict[str, object]:
    """One prompt's log probabilities, and those of a generated token where one is asked for."""
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0]
    ids = [*ids, int(logits[-1].argmax())] if more else ids
    logprobs = torch.log_softmax(logits.double(), dim=1)
    write = (lambda i: f"<{i}>") if texts else (lambda i: f"token_id:{i}")
    own, tops = [None], [None]
    for place, token in enumerate(ids[1:]):
        row = logprobs[place]
        best = {write(int(i)): float(row[i]) for i in row.topk(top).indices}
        own.append(float(row[token]))
        tops.append(best | {write(token): float(row[token])})  # vLLM adds the token's own
    results = {
        "tokens": [write(i) for i in ids],
        "token_logprobs": own,
        "top_logprobs": tops,
        "text_offset": [],
    }
    return {"index": index, "text": "", "logprobs": results, "finish_reason": "length"}


class Handler(BaseHTTPRequestHandler):
    """Answers completions and the list of models."""

    def answer(self, status: int, content: object, **headers: str) -> None:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in {
            "Content-Type": "application/json",
            "Content-Length": str(len(body)),
            **headers,
        }.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        self.answer(
            200,
            {"data": [{"id": "tiny", "max_model_len": self.server.settings.get("max_model_len")}]},
        )

    def do_POST(self) -> None:
        requested = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        fault = self.server.faults.pop(0) if self.server.faults else None
        self.server.requested.append(
            {
                "path": self.path,
                "fault": fault,
                "key": self.headers.get("Authorization"),
                **requested,
            },
        )
        if (
            self.server.settings.get("key")
            and self.headers.get("Authorization") != f"Bearer {self.server.settings['key']}"
        ):
            self.answer(
                401,
                {"error": {"message": f"no such key: {self.headers.get('Authorization')}"}},
            )
        elif fault == "drop":
            self.connection.close()
        elif fault == "redirect":
            self.answer(307, {}, Location=f"http://127.0.0.1:{self.server.server_port}/elsewhere")
        elif fault == "drip":
            self.send_response(200)
            self.end_headers()
            for _ in range(20):
                time.sleep(0.05)
                self.wfile.write(b" ")
        elif fault:
            self.answer(fault, {"error": {"message": "in the middle"}})
        elif requested["model"] != "tiny":
            self.answer(404, {"error": {"message": f"no model {requested['model']}"}})
        elif self.server.settings.get("refuses_no_tokens") and requested["max_tokens"] < 1:
            self.answer(400, {"error": {"message": "max_tokens must be at least 1"}})
        elif self.server.settings.get("no_echo"):
            self.answer(
                200,
                {
                    "choices": [
                        {"index": i, "text": "", "logprobs": None}
                        for i in range(len(requested["prompt"]))
                    ],
                },
            )
        else:
            options = (
                requested["logprobs"],
                requested["max_tokens"],
                bool(self.server.settings.get("texts")),
            )
            choices = [
                choice(self.server.model, i, ids, *options)
                for i, ids in enumerate(requested["prompt"])
            ]
            self.answer(
                200,
                self.server.settings.get("spoil", lambda content: content)(
                    {"choices": choices[::-1]},
                ),
            )

    def log_message(self, *_: object) -> None:
        """Nothing is printed."""


class Server(HTTPServer):
    """Serves from a thread of this process; `requested` has every completion that was."""

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self.set()

    def set(self, **settings: object) -> None:
        self.settings, self.faults, self.requested = settings, list(settings.get("faults", [])), []
