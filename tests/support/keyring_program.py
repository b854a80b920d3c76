"""A fake of the program ``keyring``, which pip runs: it has one password."""

from __future__ import annotations

import sys
from pathlib import Path
from urllib.parse import urlsplit

__all__ = ["write_keyring"]


def write_keyring(folder: Path, url: str | None, user: str, password: str) -> Path:
    """Write the program into ``folder``, which the caller adds to ``PATH``.

    :param url: the server of the password: its URL, or only its host; ``None`` for
        every server.
    """
    folder.mkdir()
    places = None if url is None else {url, urlsplit(url).netloc}
    program = folder / "keyring"
    program.write_text(
        f"""#!{sys.executable}
import json, sys
words = [word for word in sys.argv[1:] if not word.startswith("--")]
places = {places}
if words[0] != "get" or words[2:] != [{user!r}]:
    sys.exit(1)
if places is not None and words[1] not in places:
    sys.exit(1)
pair = {{"username": {user!r}, "password": {password!r}}}
print(json.dumps(pair) if "--output=json" in sys.argv else {password!r})
"""
    )
    program.chmod(0o700)
    return folder
