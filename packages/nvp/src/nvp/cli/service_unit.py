"""The text that ``serve --unit`` prints: systemd units, and settings of installers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

__all__ = [
    "COMMANDS",
    "NAME",
    "quote",
    "service_unit",
    "settings",
    "socket_unit",
    "text",
]

NAME = "nvidia-variant-provider"

_FOLDER = "~/.config/systemd/user"

COMMANDS = (
    "systemctl --user daemon-reload",
    f"systemctl --user enable --now {NAME}.socket",
)
"""The commands that start the index at its first request, now and at each login."""


def socket_unit(address: str) -> tuple[str, list[str]]:
    """Return the path and the lines of the unit that listens.

    :param address: host and port, such as ``127.0.0.1:8642``.
    """
    return f"{_FOLDER}/{NAME}.socket", [
        "[Unit]",
        "Description=Socket of the package index that chooses GPU builds",
        "",
        "[Socket]",
        f"ListenStream={address}",
        "",
        "[Install]",
        "WantedBy=sockets.target",
    ]


def service_unit(command: Sequence[str]) -> tuple[str, list[str]]:
    """Return the path and the lines of the unit that serves."""
    return f"{_FOLDER}/{NAME}.service", [
        "[Unit]",
        "Description=Package index that chooses GPU builds for this machine",
        f"Requires={NAME}.socket",
        f"After={NAME}.socket",
        "",
        "[Service]",
        "Type=exec",
        f"ExecStart={' '.join(map(quote, command))}",
    ]


def quote(word: str) -> str:
    """Return ``word`` as a command line of systemd has it (``systemd.service(5)``)."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    escaped = escaped.replace("%", "%%").replace("$", "$$")
    plain = escaped == word and not any(c.isspace() or c in "';" for c in word)
    return word if plain and word else f'"{escaped}"'


def settings(urls: Sequence[str]) -> dict[str, list[str]]:
    """Return for each installer the commands, or the lines of its file."""
    first, *others = urls
    pip = [f"pip config --user set global.index-url {first}"]
    if others:
        more = " ".join(others)
        pip.append(f"pip config --user set global.extra-index-url '{more}'")
    # uv takes a project from the first index that has it, and the default comes last.
    uv = [line for url in urls for line in ("[[index]]", f'url = "{url}"')]
    names = ["variants", *(f"variants-{n}" for n in range(2, len(urls) + 1))]
    keys = ["pypi.url", *(f"pypi.{name}.url" for name in names[1:])]
    return {
        "pip": pip,
        "uv": [*uv, "default = true"],
        "poetry": [
            f"poetry source add --priority=primary {name} {url}"
            for name, url in zip(names, urls, strict=True)
        ],
        "pdm": [f"pdm config {key} {url}" for key, url in zip(keys, urls, strict=True)],
    }


_WHERE = {
    "pip": "pip, once:",
    "uv": "uv, in ~/.config/uv/uv.toml:",
    "poetry": "poetry, in each project:",
    "pdm": "pdm, once:",
}


def text(
    units: Sequence[tuple[str, Sequence[str]]], lines: Mapping[str, Sequence[str]]
) -> list[str]:
    """Return the whole text; what is not for a unit file is a comment."""
    printed: list[str] = []
    for path, content in units:
        printed += [f"# {path}", *content, ""]
    printed += [
        "# Save the two parts in the files that their first lines name. Then run:",
        *(f"#   {command}" for command in COMMANDS),
        "#",
        "# Point each installer that you use at the index:",
    ]
    for installer, own in lines.items():
        printed += [f"#   {_WHERE[installer]}", *(f"#     {line}" for line in own)]
    return printed
