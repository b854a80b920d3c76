"""The CUDA versions and the minimum versions of drivers, for detected machines.

``python -m tools.build_tables`` writes this module from the same sources as
`knowledge/drivers.json`; do not edit it. Reading the JSON file would cost an installer
the import of `json` in every process.
"""

from __future__ import annotations

CUDA_OF_BRANCH = {
    450: (11, 0),
    455: (11, 1),
    460: (11, 2),
    465: (11, 3),
    470: (11, 4),
    495: (11, 5),
    510: (11, 6),
    515: (11, 7),
    520: (11, 8),
    525: (12, 0),
    530: (12, 1),
    535: (12, 2),
    545: (12, 3),
    550: (12, 4),
    555: (12, 5),
    560: (12, 6),
    565: (12, 7),
    570: (12, 8),
    575: (12, 9),
    580: (13, 0),
    590: (13, 1),
    595: (13, 2),
    610: (13, 3),
    615: (13, 4),
}
"""The CUDA version that the drivers of a branch report."""

FLOORS = {
    "linux": {
        11: (450, 80),
        12: (525, 60),
        13: (580, 65),
    },
    "windows": {
        11: (452, 39),
        12: (528, 33),
        13: (580, 0),
    },
}
"""The lowest driver of each CUDA major for minor-version compatibility.

Source: https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html
"""
