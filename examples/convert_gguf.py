"""Rounds the matrices of a GGUF file to another precision, or unpacks it into a folder of
safetensors.

    python examples/convert_gguf.py model.gguf model-q4_0.gguf --to Q4_0
    python examples/convert_gguf.py model.gguf model

Rounding is the gguf package's, to the nearest value, without calibration.
"""

import argparse
from pathlib import Path

import gguf
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig


def unpack(source: Path, folder: Path) -> None:
    """Writes weights in bfloat16, configuration and tokenizer of a GGUF file to a folder that
    transformers loads."""
    place = {"pretrained_model_name_or_path": source.parent, "gguf_file": source.name}
    # Without `dequantize` transformers may leave the weights packed, and `save_pretrained` refuses
    # those.
    plain = GgufConfig(dequantize=True)
    model = AutoModelForCausalLM.from_pretrained(
        **place, dtype=torch.bfloat16, quantization_config=plain
    )
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(**place).save_pretrained(folder)


def requantise(source: Path, target: Path, precision: str) -> None:
    """Writes a GGUF file whose layers are rounded to `precision`, embeddings and head to Q8_0, with
    the source's metadata."""
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(target, reader.fields["general.architecture"].contents())
    for name, field in reader.fields.items():
        if (
            not name.startswith("GGUF.") and name != "general.architecture"
        ):  # the writer adds these itself
            writer.add_key_value(name, field.contents(), field.types[0], field.types[-1])
    for tensor in reader.tensors:
        values, kind = tensor.data, tensor.tensor_type
        if len(tensor.shape) == 2:
            kind = gguf.GGMLQuantizationType[
                precision if tensor.name.startswith("blk.") else "Q8_0"
            ]
            values = gguf.quants.quantize(gguf.quants.dequantize(values, tensor.tensor_type), kind)
        writer.add_tensor(tensor.name, values, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main() -> None:
    """Parses the command line and converts."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("source", type=Path, help="a GGUF file")
    parser.add_argument("target", type=Path, help="with --to a GGUF file, else a folder")
    parser.add_argument("--to", metavar="PRECISION", help="Q8_0, Q5_1, Q5_0, Q4_1, Q4_0 or F16")
    options = parser.parse_args()
    if options.to:
        requantise(options.source, options.target, options.to)
    else:
        unpack(options.source, options.target)


if __name__ == "__main__":
    main()
