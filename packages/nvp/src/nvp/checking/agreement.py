"""Check whether packages that are pinned together are compatible.

The rules are the same as for installed distributions in ``nvp doctor``: ND302, ND304 to
ND306, ND403 and ND502.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from packaging.utils import canonicalize_name

from nvidia_variant_provider.errors import shown

from ..doctor.distributions import TRITON, allows, is_built_for
from ..metadata.requirements import holds, parse_requirement
from ..pins.model import Pin, SelectedPin
from ..pins.targets import PinTarget
from .evidence import Known
from .model import Disagreement

_COUNTING = re.compile(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)")
_BACKEND = re.compile(
    r"-(?:cu[0-9]{2,3}|cuda[0-9]{2,3}x?|gpu|cpu|directml|rocm[-0-9]*)$"
)


def find_disagreements(
    items: Sequence[SelectedPin], builds: Sequence[Known], target: PinTarget
) -> Iterator[Disagreement]:
    """Yield the conflicts between the packages of one selection.

    A missing requirement is not reported, because the file may list only some packages.
    """
    pins: dict[str, list[Pin]] = {}
    for item in items:
        pins.setdefault(item.pin.name, []).append(item.pin)
    known = {id(item.pin): item for item in builds}
    for pin in (item.pin for item in items):
        own = known.get(id(pin))
        texts = [
            *(pin.requires or ()),
            *(own.needs.requires if own and own.needs else ()),
        ]
        yield from _find_unmet(pin, dict.fromkeys(texts), pins, target)
    yield from _find_majors(builds)
    yield from _find_twins(pins, {item.pin.name for item in builds})


def _find_unmet(
    pin: Pin,
    texts: Iterable[str],
    pins: Mapping[str, list[Pin]],
    target: PinTarget,
) -> Iterator[Disagreement]:
    """Yield unmet requirements of a pin on GPU packages, NVIDIA libraries or Triton."""
    said: set[str] = set()
    for text in texts:
        match = _COUNTING.match(text)
        name = canonicalize_name(match[1]) if match else ""
        versions = [other.version for other in pins.get(name, ())]
        if not versions or None in versions or name in said or not _counts(name):
            continue
        requirement = parse_requirement(text)
        if requirement is None or not requirement.specifier:
            continue
        variables = {**target.variables, "extra": ""}
        if not holds(requirement, variables):
            continue
        # The file's requirements come first: skip any others on the same package.
        said.add(name)
        # One match is enough: a file may pin several versions for similar machines.
        met = any(allows(requirement, str(version)) for version in versions)
        if met:
            continue
        wanted = shown(f"{requirement.name}{requirement.specifier}", 100)[1:-1]
        yield Disagreement(
            pin=pin,
            others=(name,),
            message=f"{pin.title} requires {wanted}, and {name} is {versions[0]}",
        )


def _counts(name: str) -> bool:
    own = is_built_for(name) or name in TRITON
    return own or name.startswith(("nvidia-", "cuda-"))


def _find_majors(builds: Sequence[Known]) -> Iterator[Disagreement]:
    """Yield CUDA major conflicts within a library, or of torch with an extension."""
    libraries: dict[str, dict[int, Known]] = {}
    for item in builds:
        if item.is_library and item.named and item.named.cuda:
            purpose = re.sub(r"-cu[0-9]{2}$", "", item.pin.name)
            libraries.setdefault(purpose, {})[item.named.cuda.major] = item
    for found in libraries.values():
        if len(found) > 1:
            first, *others = (item for _, item in sorted(found.items()))
            titles = " and ".join(x.pin.title for x in (first, *others))
            yield Disagreement(
                pin=first.pin,
                others=tuple(item.pin.name for item in others),
                message=f"{titles} are one library for two CUDA majors",
                strict=False,
            )
    torch = next((item for item in builds if item.pin.name == "torch"), None)
    cuda = torch.needs.cuda if torch and torch.needs and torch.needs.gpu else None
    for item in builds:
        backend = item.backend
        if torch is None or cuda is None or backend is None or backend.cuda is None:
            continue
        # Compare majors only: minor versions of one CUDA major are compatible.
        is_extension = "torch" in item.required or backend.torch is not None
        if is_extension and backend.cuda.major != cuda.major:
            yield Disagreement(
                pin=item.pin,
                others=("torch",),
                message=f"{item.pin.title} is for CUDA {backend.cuda}, and "
                f"{torch.pin.title} is for CUDA {cuda}",
            )


def _find_twins(
    pins: Mapping[str, list[Pin]], builds: set[str]
) -> Iterator[Disagreement]:
    """Yield conflicts between builds of a package, such as faiss-cpu and faiss-gpu."""
    stems: dict[str, list[Pin]] = {}
    for name, (pin, *_) in pins.items():
        if not name.startswith("nvidia-"):
            stems.setdefault(stem_of(name), []).append(pin)
    for twins in stems.values():
        if len(twins) > 1 and any(pin.name in builds for pin in twins):
            first, *others = sorted(twins, key=lambda pin: pin.name)
            titles = " and ".join(pin.title for pin in (first, *others))
            yield Disagreement(
                pin=others[0],
                others=(first.name,),
                message=f"{titles} install files of the same names: the one that is "
                "installed last counts",
            )


def stem_of(name: str) -> str:
    """Return a name without hardware suffixes: ``faiss`` for ``faiss-gpu-cu12``."""
    while (short := _BACKEND.sub("", name)) != name:
        name = short
    return name
