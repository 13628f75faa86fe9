"""TensorBoard event files, read back by a parser of their own."""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from keel.report.event_files import Scalar, write_event_file


def crc32c(data: bytes) -> int:
    """Bit by bit, from the definition of CRC-32C (Castagnoli), unlike the table of the writer."""
    crc = 0xFFFFFFFF
    for byte in data:
        for bit in range(8):
            odd = (crc ^ (byte >> bit)) & 1
            crc = (crc >> 1) ^ (0x82F63B78 * odd)
    return crc ^ 0xFFFFFFFF


def unmask(masked: int) -> int:
    rotated = (masked - 0xA282EAD8) % 2**32
    return (rotated >> 17 | rotated << 15) % 2**32


def records(data: bytes) -> Iterator[bytes]:
    place = 0
    while place < len(data):
        (length,) = struct.unpack_from("<Q", data, place)
        assert unmask(struct.unpack_from("<I", data, place + 8)[0]) == crc32c(data[place : place + 8])
        body = data[place + 12 : place + 12 + length]
        assert unmask(struct.unpack_from("<I", data, place + 12 + length)[0]) == crc32c(body)
        yield body
        place += length + 16


def varint(data: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte, place = data[place], place + 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, place


def message(data: bytes) -> dict[int, Any]:
    """The fields of a protocol buffer by number."""
    found: dict[int, Any] = {}
    place = 0
    while place < len(data):
        key, place = varint(data, place)
        field, wire = divmod(key, 8)
        if wire == 0:
            found[field], place = varint(data, place)
        elif wire == 2:
            length, place = varint(data, place)
            found[field], place = data[place : place + length], place + length
        else:
            size, form = {1: (8, "<d"), 5: (4, "<f")}[wire]
            (found[field],) = struct.unpack_from(form, data, place)
            place += size
    return found


def test_the_checksum_is_that_of_the_standard() -> None:
    assert crc32c(b"123456789") == 0xE3069283  # the check value of CRC-32C


def test_an_event_file_can_be_read_back(tmp_path: Path) -> None:
    curves = {"loss": [Scalar(1, 0.5, 1000.25), Scalar(300, -2.25, 1001.5)], "Lernrate ü": [Scalar(2**40, 1e-4, 3.0)]}
    path = write_event_file(tmp_path / "run", curves)
    first, *events = map(message, records(path.read_bytes()))
    assert first[3] == b"brain.Event:2"
    found = []
    for event in events:
        value = message(message(event[5])[1])
        found.append((value[1].decode(), event.get(2, 0), value[2], event[1]))
    assert found == [
        ("loss", 1, 0.5, 1000.25),
        ("loss", 300, -2.25, 1001.5),
        ("Lernrate ü", 2**40, pytest.approx(1e-4), 3.0),
    ]
    write_event_file(tmp_path / "run", curves)
    assert len([*(tmp_path / "run").iterdir()]) == 1
