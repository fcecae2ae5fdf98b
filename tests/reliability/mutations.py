"""Small BAL and g2o files, and random damage to them."""

import bz2
import gzip
import random
import re
from collections.abc import Callable

from tests.io.bal_files import LINES as BAL_LINES
from tests.io.g2o_files import INFORMATION_SE2, INFORMATION_SE3, LINES_SE2, LINES_SE3

NASTY = (
    *(
        "nan",
        "-nan",
        "inf",
        "-Infinity",
        "nan(1)",
        "1e999",
        "-1e999",
        "1e308",
        "-1.7e308",
        "1e-320",
    ),
    *("1_000", "1__0", "0x10", "0b1", "1e", "e1", "1e+", ".", "-", "+", "", "--1", "1-2", "1.2.3"),
    *("1,5", "1;", "\xb2", "\xd9\xa3", "\xef\xbb\xbf1", "\x00", "1\x00", "1\xa02", "\u00bd"),
    *("1" * 5000, "0" * 5000 + "1", "9" * 400, "1." + "0" * 1500, "0" * 1000 + "7", "9" * 39),
    *("-0", "+0", "00", "0.", ".0", "1d3", "1f", "1L", "True", "None", "2147483648", "4294967296"),
    *("9223372036854775807", "9223372036854775808", "18446744073709551616", "0.5", "1e10", "-1"),
    *(
        "\r",
        "\x0b",
        "\x0c",
        "\x1c",
        "\x85",
        "\u2003",
        "#",
        "FIX",
        "FIX 7",
        "PARAMS_X",
        "EDGE_CAM",
    ),
    *(
        "EDGE_SE2",
        "VERTEX_SE3:QUAT",
        "1e300",
        "1e301",
        "1e155",
        "1e-200",
        "(1)",
        "'1'",
        "{0}",
        "%s",
    ),
)

BAL = "".join(f"{line}\n" for line in BAL_LINES).encode()
G2O = tuple(
    "".join(f"{line}\n" for line in lines).encode()
    for lines in (
        LINES_SE2,
        [
            "# a comment",
            "PARAMS_SE2OFFSET 0 0 0 0",
            *LINES_SE2,
            f"EDGE_SE2 7 10 0 0 1 {INFORMATION_SE2}",
        ],
        [
            LINES_SE2[3],
            f"EDGE_SE2 3 7 1 2 -1 {INFORMATION_SE2}",
            "EDGE_SE2 3 10 1 2 -1 1 1 0 1 0 0",
        ],
        LINES_SE3,
        [*LINES_SE3, "FIX 0 1", f"EDGE_SE3:QUAT 1 0 1 1 1 0 0 0 1 {INFORMATION_SE3}"],
        [LINES_SE3[2], f"EDGE_SE3:QUAT 5 1 -1 2 3 0.5 0.5 -0.5 0.5 {INFORMATION_SE3}"],
    )
)

Damage = Callable[[bytes, random.Random], bytes]


def damaged(content: bytes, generator: random.Random) -> bytes:
    """Some content after one to three damages, seldom none."""
    for _ in range(generator.choice((0, 1, 1, 1, 1, 2, 2, 3))):
        content = generator.choice(_DAMAGES)(content, generator)
    return content


def packed(content: bytes, generator: random.Random) -> tuple[bytes, str]:
    """Content and suffix: plain, packed, packed and damaged, or named wrongly."""
    way = generator.random()
    if way < 0.6:
        return content, ""
    pack, suffix = generator.choice(((bz2.compress, ".bz2"), (gzip.compress, ".gz")))
    if way < 0.64:
        return content, suffix
    content = pack(content)
    if way < 0.8:
        content = generator.choice((_flip, _cut, _flip_bytes, _join, _insert))(content, generator)
    return content, generator.choice((suffix, suffix, "", ".txt"))


def _flip(content: bytes, generator: random.Random) -> bytes:
    if not content:
        return content
    place = generator.randrange(len(content))
    changed = content[place] ^ (1 << generator.randrange(8))
    return content[:place] + bytes([changed]) + content[place + 1 :]


def _flip_bytes(content: bytes, generator: random.Random) -> bytes:
    if not content:
        return content
    place = generator.randrange(len(content))
    return content[:place] + generator.randbytes(generator.randint(1, 8)) + content[place + 1 :]


def _insert(content: bytes, generator: random.Random) -> bytes:
    place = generator.randint(0, len(content))
    return content[:place] + generator.randbytes(generator.randint(1, 4)) + content[place:]


def _cut(content: bytes, generator: random.Random) -> bytes:
    place = generator.randint(0, len(content))
    return content[:place] if generator.random() < 0.8 else content[place:]


def _join(content: bytes, generator: random.Random) -> bytes:
    return content + generator.choice((content, BAL, *G2O, b"\x00", b"junk", b"\n"))


def _tokens(content: bytes, generator: random.Random) -> bytes:
    parts = re.split(rb"(\s+)", content)
    first, second = generator.randrange(len(parts)), generator.randrange(len(parts))
    match generator.randrange(4):
        case 0:
            parts[first], parts[second] = parts[second], parts[first]
        case 1:
            parts[first] = b""
        case 2:
            parts[first] = parts[first] + b" " + parts[first]
        case _:
            parts[first] = parts[second]
    return b"".join(parts)


def _lines(content: bytes, generator: random.Random) -> bytes:
    lines = content.split(b"\n")
    first, second = generator.randrange(len(lines)), generator.randrange(len(lines))
    match generator.randrange(4):
        case 0:
            lines[first], lines[second] = lines[second], lines[first]
        case 1:
            del lines[first]
        case 2:
            lines.insert(second, lines[first])
        case _:
            return content.replace(b"\n", generator.choice((b"\r\n", b"\r", b"\n\n", b" ", b"")))
    return b"\n".join(lines)


def _nasty(content: bytes, generator: random.Random) -> bytes:
    places = [match.span() for match in re.finditer(rb"\S+", content)]
    if not places:
        return content
    start, end = generator.choice(places)
    token = generator.choice(NASTY).encode(generator.choice(("utf-8", "utf-16", "utf-8")))
    return content[:start] + token + content[end:]


def _other_number(content: bytes, generator: random.Random) -> bytes:
    places = [match.span() for match in re.finditer(rb"\S+", content)]
    if not places:
        return content
    start, end = generator.choice(places)
    value = generator.choice(
        (0, 1, 2, -1, 7, 10, 0.5, generator.gauss(0, 1), generator.gauss(0, 1e6))
    )
    return content[:start] + str(value).encode() + content[end:]


_DAMAGES: tuple[Damage, ...] = (
    *(_flip, _flip_bytes, _insert, _cut, _join, _tokens, _tokens, _lines, _lines),
    *(_nasty, _nasty, _nasty, _other_number, _other_number, _other_number),
)
