"""The binary format of frames: tensor files, an append-only index, and positions in 16 bits.

A tensor file is in the safetensors format (https://github.com/huggingface/safetensors): the length of a header in eight
bytes, the header in JSON, the tensors. The format is simple enough to write here, and any reader can open it.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidemill._errors import TidemillError

__all__ = [
    "INDEX",
    "MISSING",
    "STEPS",
    "FrameError",
    "dequantize",
    "pack_codes",
    "pack_texts",
    "quantize",
    "read_index",
    "read_tensors",
    "run_of",
    "tensor_parts",
    "unpack_codes",
    "unpack_texts",
    "write_parts",
    "write_tensors",
]

INDEX = "index.jsonl"
FORMAT = "tidemill-frames"
VERSION = 1

#: Steps of a quantized number: the error of a coordinate is at most half of its box / STEPS.
STEPS = 65_534
#: Marks a missing quantized value, and is also the code for points without a category.
MISSING = 65_535

#: Maximum length of a tensor file's header.
_HEADER_BYTES_MAX = 1 << 20

_DTYPES: dict[str, np.dtype[Any]] = {
    "U8": np.dtype("u1"),
    "U16": np.dtype("<u2"),
    "U32": np.dtype("<u4"),
    "F32": np.dtype("<f4"),
}
#: Like `MISSING`, for 8-bit codes.
_MISSING_8 = 255
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


class FrameError(TidemillError, ValueError):
    """Frames cannot be written as requested, or a folder of frames cannot be read."""


class Busy(FrameError):
    """Another program has held a resource for longer than the time limit; try again later."""


def write_tensors(path: Path, tensors: Mapping[str, NDArray[Any]]) -> None:
    """Write a tensor file, atomically."""
    write_parts(path, tensor_parts(tensors))


def write_parts(path: Path, parts: Iterable[bytes | memoryview]) -> None:
    """Write a file of these bytes, atomically."""
    made = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with made.open("wb") as file:
            file.writelines(parts)
        made.replace(path)
    except BaseException:
        made.unlink(missing_ok=True)
        raise


def tensor_parts(tensors: Mapping[str, NDArray[Any]]) -> list[bytes | memoryview]:
    """Return the bytes of a tensor file as consecutive parts; those of the tensors are not copied."""
    header: dict[str, Any] = {}
    parts: list[bytes | memoryview] = []
    end = 0
    # The widest numbers come first, so that each tensor is aligned for its numbers without gaps, which the format
    # forbids.
    for name, tensor in sorted(tensors.items(), key=lambda item: -item[1].dtype.itemsize):
        part = np.ascontiguousarray(tensor, tensor.dtype.newbyteorder("<"))
        begin, end = end, end + part.nbytes
        header[name] = {"dtype": _NAMES[part.dtype], "shape": list(part.shape), "data_offsets": [begin, end]}
        if part.size:
            parts.append(part.data.cast("B"))
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return [struct.pack("<Q", len(text)), text, *parts]


def read_tensors(path: Path) -> dict[str, NDArray[Any]]:
    """Map a tensor file into memory; data is read only when used.

    Raises
    ------
    FrameError
        If the file does not exist, is truncated, or is not a tensor file.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            head = file.read(8)
            length = struct.unpack("<Q", head)[0] if len(head) == 8 else -1
            if not 2 <= length <= min(size - 8, _HEADER_BYTES_MAX):
                raise FrameError(
                    f"{path} is not a tensor file, or is truncated: its header cannot be {length} bytes long"
                )
            header = json.loads(file.read(length))
        data = np.memmap(path, np.uint8, "r", 8 + length) if size > 8 + length else np.empty(0, np.uint8)
        tensors: dict[str, NDArray[Any]] = {}
        for name, told in header.items():
            if name == "__metadata__":
                continue
            begin, end = told["data_offsets"]
            dtype, shape = _DTYPES[told["dtype"]], tuple(told["shape"])
            if not 0 <= begin <= end <= len(data) or end - begin != math.prod(shape) * dtype.itemsize:
                raise FrameError(
                    f"{path} is cut off or damaged: {name!r} is said to lie at {begin} to {end} of {len(data)} bytes"
                )
            tensors[name] = data[begin:end].view(dtype).reshape(shape)
    except OSError as error:
        raise FrameError(f"{path} cannot be read: {error.strerror}") from error
    except FrameError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise FrameError(f"the header of {path} is invalid: {error!r}") from error
    return tensors


def run_of(folder: Path) -> str | None:
    """Return the id of the writer's run that the index names; None if it names none, or there is no index."""
    try:
        with (folder / INDEX).open("rb") as file:
            run = json.loads(file.readline()).get("run")
    except (FileNotFoundError, ValueError, AttributeError):
        return None
    return run if isinstance(run, str) else None


def read_index(folder: Path, begin: int = 0) -> tuple[list[dict[str, Any]], int]:
    """Read the complete lines of a folder's index from byte `begin` on, and return where they end.

    Raises
    ------
    FrameError
        If there is no index, or a line is not a JSON object.
    """
    path = folder / INDEX
    try:
        with path.open("rb") as file:
            file.seek(begin)
            text = file.read()
    except FileNotFoundError:
        what = "has no frames: there is no " + INDEX if folder.is_dir() else "is not a folder"
        raise FrameError(f"{folder} {what}; `tidemill view --demo {folder}` makes frames to try") from None
    except OSError as error:
        raise FrameError(f"{path} cannot be read: {error.strerror}") from error
    # A line without an end is still being written.
    text = text[: text.rfind(b"\n") + 1]
    lines: list[dict[str, Any]] = []
    for number, line in enumerate(text.splitlines(), 1):
        try:
            told = json.loads(line)
        except ValueError:
            told = None
        if not isinstance(told, dict):
            raise FrameError(f"{path}: line {number} after byte {begin} is not a JSON object")
        lines.append(told)
    if begin == 0 and lines and (lines[0].get("format") != FORMAT or lines[0].get("version") != VERSION):
        raise FrameError(
            f"{path} does not begin as an index of {FORMAT!r} of version {VERSION} does; written by another release?"
        )
    return lines, begin + len(text)


def quantize(values: NDArray[Any], low: NDArray[Any] | float, high: NDArray[Any] | float) -> NDArray[np.uint16]:
    """Round to the nearest of the steps from `low` to `high`; NaN becomes `MISSING`."""
    step = (np.asarray(high, float) - low) / STEPS
    scaled = (values - low) / np.where(step > 0, step, 1)
    return np.where(np.isnan(scaled), MISSING, np.rint(np.clip(scaled, 0, STEPS))).astype(np.uint16)


def dequantize(steps: NDArray[np.uint16], low: Any, high: Any) -> NDArray[np.float32]:
    """Return the values that were quantized, off by at most half a step; NaN for `MISSING`."""
    low = np.asarray(low, float)
    values = low + steps * ((np.asarray(high, float) - low) / STEPS)
    return np.where(steps == MISSING, np.nan, values).astype(np.float32)


def pack_codes(codes: NDArray[np.uint16], categories: int) -> NDArray[Any]:
    """Return codes of this many categories, in 8 bits if these suffice, as for most groupings."""
    if categories > _MISSING_8:
        return codes
    packed = codes.astype(np.uint8)
    packed[codes == MISSING] = _MISSING_8
    return packed


def unpack_codes(packed: NDArray[Any]) -> NDArray[np.uint16]:
    """Return the codes packed by `pack_codes`."""
    if packed.dtype != np.uint8:
        return packed
    codes = packed.astype(np.uint16)
    codes[packed == _MISSING_8] = MISSING
    return codes


def pack_texts(name: str, texts: list[str]) -> dict[str, NDArray[Any]]:
    """Return strings as tensors: the start of each, and their concatenated UTF-8."""
    encoded = [text.encode() for text in texts]
    offsets = np.zeros(len(texts) + 1, np.uint32)
    np.cumsum([len(text) for text in encoded], out=offsets[1:])
    return {f"{name}.offsets": offsets, f"{name}.bytes": np.frombuffer(b"".join(encoded), np.uint8)}


def unpack_texts(name: str, tensors: Mapping[str, NDArray[Any]]) -> list[str]:
    """Return the strings packed by `pack_texts`."""
    data = tensors[f"{name}.bytes"].tobytes()
    ends = tensors[f"{name}.offsets"].tolist()
    return [data[begin:end].decode() for begin, end in itertools.pairwise(ends)]
