"""TensorBoard event files: scalars as TFRecords of protocol buffers."""

import struct
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

POLYNOMIAL = 0x82F63B78
"""Polynomial of CRC-32C, reversed."""
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
"""Wire types of protocol buffers."""


class Scalar(NamedTuple):
    """A value at a step; `time` is in seconds since 1970."""

    step: int
    value: float
    time: float


def write_event_file(folder: Path, scalars: Mapping[str, Iterable[Scalar]]) -> Path:
    """Write one event file into a folder: a curve for each name; event files of an earlier call are replaced."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("events.out.tfevents.*.keel"):
        old.unlink()
    path = folder / f"events.out.tfevents.{int(time.time())}.keel"
    with open(path, "wb") as file:
        file.write(_record(_fixed64(1, time.time()) + _bytes(3, b"brain.Event:2")))
        for name, curve in scalars.items():
            for step, value, when in curve:
                # Event: wall_time 1, step 2, summary 5; Summary: value 1; Value: tag 1, simple_value 2
                single = _bytes(1, name.encode()) + bytes([2 << 3 | FIXED32]) + struct.pack("<f", value)
                event = _fixed64(1, when) + bytes([2 << 3 | VARINT]) + _varint(step) + _bytes(5, _bytes(1, single))
                file.write(_record(event))
    return path


def _record(data: bytes) -> bytes:
    """A TFRecord: length, its checksum, data, its checksum."""
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", _masked_crc(length)) + data + struct.pack("<I", _masked_crc(data))


def _varint(value: int) -> bytes:
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*parts, value])


def _bytes(field: int, data: bytes) -> bytes:
    return bytes([field << 3 | BYTES]) + _varint(len(data)) + data


def _fixed64(field: int, value: float) -> bytes:
    return bytes([field << 3 | FIXED64]) + struct.pack("<d", value)


def _crc_of_byte(value: int) -> int:
    for _ in range(8):
        value = value >> 1 ^ (POLYNOMIAL if value & 1 else 0)
    return value


CRC_TABLE = [_crc_of_byte(value) for value in range(256)]


def _masked_crc(data: bytes) -> int:
    """CRC-32C, rotated by 15 bits and shifted, as TFRecords store it."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = CRC_TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
