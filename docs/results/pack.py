"""Write results.sqlite.xz beside each results.sqlite below the named folders, and remove results.sqlite.

    python docs/results/pack.py docs/results/fair

Every number of every trial is kept, with the configuration, the method, the seed and the trial that it belongs to. The
key of a row, a digest by which `coterie sweep --resume` finds what is done, does not compress and is left out: a packed
file can be read (`coterie results`, `coterie plot`), but a sweep cannot be continued from it. Of the path of a folder
of data, there and in grid.toml beside it, the last part stays.
"""

from __future__ import annotations

import json
import lzma
import re
import sqlite3
import sys
from contextlib import closing
from pathlib import Path


def pack(file: Path) -> Path:
    """Return the path of the compressed copy of `file`."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as copy:
        with closing(sqlite3.connect(file)) as source:
            source.backup(copy)
        columns = [name for _, name, *_ in copy.execute("PRAGMA table_info(results)") if name != "key"]
        names = ", ".join(columns)
        copy.executescript(
            f"""
            PRAGMA journal_mode = MEMORY;
            CREATE TEMP TABLE kept AS SELECT {names} FROM results ORDER BY configuration, method, seed, trial;
            DELETE FROM results;
            INSERT INTO results ({names}) SELECT {names} FROM kept ORDER BY rowid;
            DROP TABLE kept;
            """
        )
        for name, content in copy.execute("SELECT id, content FROM configurations").fetchall():
            settings = json.loads(content)
            if "path" in settings["problem"]:
                settings["problem"]["path"] = Path(settings["problem"]["path"]).name
                copy.execute("UPDATE configurations SET content = ? WHERE id = ?", [json.dumps(settings), name])
        copy.execute("VACUUM")
        packed = bytearray(copy.serialize())
    packed[18:20] = b"\x01\x01"  # the header's journal mode: no write-ahead log, which a file in memory cannot have
    archive = file.with_name(f"{file.name}.xz")
    archive.write_bytes(lzma.compress(packed, preset=9 | lzma.PRESET_EXTREME))
    if (grid := file.with_name("grid.toml")).is_file():
        text = grid.read_text(encoding="utf-8")
        grid.write_text(re.sub(r'^path = ".*?([^/"]*)"$', r'path = "\1"', text, flags=re.MULTILINE), encoding="utf-8")
    return archive


if __name__ == "__main__":
    for folder in sys.argv[1:]:
        for found in sorted(Path(folder).rglob("results.sqlite")):
            before = found.stat().st_size
            print(f"{found}: {before} -> {pack(found).stat().st_size} bytes")
            found.unlink()
