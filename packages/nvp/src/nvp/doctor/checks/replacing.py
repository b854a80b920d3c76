"""Find the command that replaces a build with one that runs on the machine.

A command must change the environment, so it never requests a build that pip would
reinstall unchanged, or that no known index has.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from packaging.version import Version

from ...knowledge.builds import build_records
from ...knowledge.tables import VendorIndex, find_vendors
from ..commands import Advice, Command
from ..distributions import Distribution
from ..model import Stack, platform_of_wheel

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ...builds.vendors import Elsewhere


_MOST_COMPANIONS = 20
"""The number of companions after which the search for more ends."""


def replace_builds(stack: Stack, *names: str, beside: Sequence[str] = ()) -> Advice:
    """Return advice to replace builds, including newer builds on vendors' indexes.

    Companions built for exactly these releases are replaced too. A vendor's index is
    named if it has a newer runnable build than PyPI, or if PyPI has no runnable one.

    :param beside: further projects to reinstall, whose releases may remain the same.
    """
    installed = [x for name in names if (x := stack.distributions.get(name))]
    if any(item.installer == "conda" for item in installed):
        return Advice.of(stack.reinstall(*names))
    if installed and all(
        item.is_library and not stack.is_required(item.name) for item in installed
    ):
        return Advice.of(stack.pip("uninstall", "--yes", *names))
    built = [item.name for item in installed if item.is_from_source]
    if built:
        return Advice(f"build {', '.join(built)} again from source for this machine")
    companions = find_companions(stack, *names, *beside)
    others = [x for name in beside if (x := stack.distributions.get(name))]
    together = [
        *installed,
        *others,
        *(item for item in companions if not item.is_from_source),
    ]
    if keeping := _keep_torch(stack, installed):
        return Advice.of(keeping)
    found = {item.name: stack.elsewhere(item) for item in together}
    for name in found.keys() & {item.name for item in companions}:
        found[name] = tuple(x for x in found[name] if x.version)
    stuck = [x for x in together if _nothing_runs(stack, x)]
    if any(item in stuck and not found[item.name] for item in installed):
        return _other_project(stack, [item for item in stuck if item.name in names])
    moved = [x for x in together if x not in stuck or x in installed]
    words = [_another(x) if x.name in names else x.name for x in moved]
    unknown = [item.name for item in moved if not _is_in_table(item)]
    only = ["--only-binary", ",".join(unknown)] if unknown else []
    command = Advice.of(stack.reinstall(*words, words=only))
    if left := [item.name for item in companions if item not in moved]:
        command = command.before(
            f", and then nvp doctor again: {', '.join(left)} is for what is replaced"
        )
    elsewhere = [item for items in found.values() for item in items]
    if not elsewhere:
        return command
    again = ("--upgrade", "--force-reinstall")
    there = _elsewhere(stack, elsewhere, again)
    # The user's own index is usually PyPI: suggest it only if a PyPI build runs here.
    if not any(map(stack.newest_on_pypi, installed)):
        return there
    return command.after(f"{there.text}; or from your own index: ")


def _elsewhere(
    stack: Stack,
    items: Sequence[Elsewhere],
    options: Sequence[str],
    instead: Mapping[str, str] = MappingProxyType({}),
    also: Sequence[str] = (),
) -> Advice:
    """Return advice to use vendors' indexes, with the command for the first index.

    :param instead: requirements to use instead of plain project names, keyed by name.
    :param also: further requirements.
    """
    from ...builds.vendors import say_elsewhere

    made: list[Command] = []

    def install(words: Sequence[str]) -> str:
        wanted = [instead.get(word, word) for word in words]
        made.append(stack.pip("install", *options, *wanted, *also))
        return str(made[-1])

    return Advice("; ".join(say_elsewhere(items, install)), tuple(made[:1]))


def _keep_torch(stack: Stack, installed: Sequence[Distribution]) -> Command | None:
    """Return the command that replaces companions and keeps torch, if possible."""
    torch, build = stack.distributions.get("torch"), stack.toolchain.torch
    if torch is None or build is None or build.cuda is None:
        return None
    if not installed or torch in installed:
        return None
    if any(x.leader != "torch" for y in installed for x in find_vendors(y.name)[:1]):
        return None
    pins = {n.user.name for n in stack.requirements if n.name == "torch" and n.is_exact}
    if not pins >= {item.name for item in installed}:
        return None
    pin = f"torch=={torch.public_version}"
    return stack.pip("install", "--upgrade", *map(_another, installed), pin)


def find_companions(stack: Stack, *names: str) -> list[Distribution]:
    """Return distributions built for exactly the installed releases of ``names``.

    Companions pin one of the projects or each other, or are linked with torch.
    """
    found: dict[str, Distribution] = {}
    seen, waiting = set(names), list(names)
    while waiting and len(found) < _MOST_COMPANIONS:
        name = waiting.pop()
        users = [n.user for n in stack.needs_by_name.get(name, ()) if n.is_exact]
        if name == "torch":
            users += map(stack.distributions.__getitem__, stack.linked_with_torch)
        for user in users:
            if user.name not in seen and not user.is_library:
                seen.add(user.name)
                found[user.name] = user
                waiting.append(user.name)
    return list(found.values())


def _is_in_table(distribution: Distribution) -> bool:
    platform = platform_of_wheel(distribution)
    rows = build_records().get(distribution.name, ())
    return any(row.platform == platform and row.label is None for row in rows)


def _nothing_runs(stack: Stack, distribution: Distribution) -> bool:
    """Return whether the table lists a project, but none of its releases runs here."""
    if stack.newest_on_pypi(distribution) is not None:
        return False
    return _is_in_table(distribution) and distribution.variant_json is None


def _another(distribution: Distribution) -> str:
    """Return a requirement on any release except the installed one.

    A release with variants is not excluded, because another variant may fit.
    """
    if distribution.variant_json is not None:
        return distribution.name
    try:
        return f"{distribution.name}!={Version(distribution.version)}"
    except ValueError:
        return distribution.name


_FOR_CUDA = re.compile(r"(.+?(?:cu|cuda))([0-9]{2})(x?(?:-.+)?)")


def _other_project(stack: Stack, stuck: Sequence[Distribution]) -> Advice:
    """Return advice to use sibling projects, or a newer driver, if no release runs."""
    driver = stack.environment.cuda_driver_version
    others: dict[str, str] = {}
    for item in stuck:
        match = _FOR_CUDA.fullmatch(item.name)
        if match is None or driver is None:
            continue
        for cuda in range(min(driver.major, int(match[2]) - 1), 10, -1):
            name = f"{match[1]}{cuda}{match[3]}"
            if name in build_records():
                jax = stack.distributions.get("jaxlib")
                if jax is not None and name.startswith("jax-"):
                    name = f"jax[cuda{cuda}]=={jax.public_version}"
                others[item.name] = name
                break
    if len(others) == len(stuck):
        remove = stack.pip("uninstall", "--yes", *others)
        install = stack.pip("install", *dict.fromkeys(others.values()))
        return Advice(f"{remove} && {install}", (remove, install))
    names = ", ".join(item.name for item in stuck)
    return Advice(
        f"take a newer driver, or another package: no build of {names} that nvp knows "
        "of, on PyPI or an index of its vendor, runs on this machine"
    )


def install_extra(stack: Stack, wanted: str, part: Distribution) -> Command:
    """Return the command that adds an extra to a program, and keeps its version.

    :param wanted: the program with the extra, such as ``jax[cuda12]``.
    :param part: an installed distribution with the same version as the program.
    """
    program = stack.distributions.get(wanted.partition("[")[0], part)
    return stack.pip("install", f"{wanted}=={program.public_version}")


def replace_extension(stack: Stack, distribution: Distribution) -> Advice:
    """Return advice to replace an extension with a build for the installed torch.

    If a vendor has an index for a project, PyPI usually has only its source, which
    needs a compiler, so PyPI is suggested only if the table lists wheels there.
    """
    from ...builds.vendors import say_source_build

    name, torch = distribution.name, stack.distributions["torch"]
    release, pin = torch.public_version, f"torch=={torch.public_version}"
    different = _another(distribution)
    only = ("--only-binary", name)
    ways: list[Command | Advice] = []
    known: list[str] = []
    for index in find_vendors(name):
        if index.file:
            known += dict.fromkeys(row[0] for row in index.builds)
        here = platform_of_wheel(distribution) in index.platforms
        if here and index.file and (url := _find_file(stack, index, release)):
            install = stack.pip("install", f"{name} @ {url}")
            said = f"{index.maker} has a wheel for torch {release}: "
            ways.append(Advice.of(install).after(said))
    if _is_in_table(distribution) or not find_vendors(name):
        ways.append(stack.pip("install", "--upgrade", *only, different, pin))
    minor = _minor(release)
    for item in stack.elsewhere(distribution, minor) if minor else ():
        if not item.index.file and item.version is None:
            options, instead = ("--upgrade", *only), {name: different}
            ways.append(_elsewhere(stack, [item], options, instead, [pin]))
    if ways:
        return Advice.first_of(*ways)
    to = f", and of some for torch {known[0]} to {known[-1]}" if known else ""
    build = stack.toolchain.torch
    source = say_source_build(name, release, build.cuda if build else None)
    return Advice(
        f"nvp knows of no wheel of {name} for torch {release}{to}: take another torch, "
        f"or build {name} from source{f' ({source})' if source else ''}"
    )


def _find_file(stack: Stack, index: VendorIndex, torch: str) -> str | None:
    """Return the URL of the wheel for a torch release and the environment's Python."""
    build, minor = stack.toolchain.torch, _minor(torch)
    cuda = None if build is None else build.cuda
    python = _minor(stack.installation.version or "")
    if minor is None or python is None or cuda is None:
        return None
    symbols = stack.torch_symbols
    # Wheels on PyPI and PyTorch's index have the new ABI since torch 2.7.
    abi = (
        symbols.abi if symbols and symbols.abi else "new" if minor >= (2, 7) else "old"
    )
    for _, backend, version, first, last in index.builds_for(minor) or ():
        fits = (_minor(first) or python) <= python <= (_minor(last) or python)
        if fits and backend == f"cu{cuda.major}":
            return index.file.format(
                version=version,
                backend=backend,
                torch=f"{minor[0]}.{minor[1]}",
                abi=str(abi == "new").upper(),
                python=f"{python[0]}{python[1]}",
            )
    return None


def _minor(version: str) -> tuple[int, int] | None:
    """Return the minor release of a version, such as ``(2, 8)``, if well-formed."""
    match = re.match(r"([0-9]{1,4})\.([0-9]{1,4})(?![0-9t])", version)
    return (int(match[1]), int(match[2])) if match else None
