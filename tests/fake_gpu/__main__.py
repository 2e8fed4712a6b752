"""Builds the stub of a GPU and runs the tests beside it once for each card: make test-fake-gpu."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).parent
CARDS = {
    "NVIDIA H100 80GB HBM3": {"MAJOR": 9, "MINOR": 0, "PROCESSORS": 132, "GB": 80, "SHARED": 227},
    "NVIDIA A100-SXM4-80GB": {"MAJOR": 8, "MINOR": 0, "PROCESSORS": 108, "GB": 80, "SHARED": 163},
    "NVIDIA GeForce RTX 4090": {"MAJOR": 8, "MINOR": 9, "PROCESSORS": 128, "GB": 24, "SHARED": 99},
}
LIBRARIES = ("libc10_cuda.so", "libtorch_cuda.so", "libtorch_python.so")  # that ask the runtime
KEPT = re.compile(r"cudaGetError(String|Name)|Register")  # of the runtime's own, which need no GPU


def package(name: str) -> Path:
    found = find_spec(name)
    assert found is not None, f"{name} is not installed: this needs a CUDA build of torch"
    return Path(next(iter(found.submodule_search_locations or ())))


def build(folder: Path) -> Path:
    """The stub as a library, for the torch that is installed here."""
    wanted = set[str]()
    for each in LIBRARIES:
        symbols = ["nm", "-D", "--undefined-only", str(package("torch") / "lib" / each)]
        listed = subprocess.run(symbols, check=True, capture_output=True, text=True).stdout
        wanted |= set(re.findall(r" U (cuda[A-Z]\w*)@libcudart", listed))
    nvidia = package("triton") / "backends" / "nvidia"
    wanted |= set(re.findall(r"\b(cu[A-Z]\w+)\(", (nvidia / "driver.c").read_text("utf-8")))
    source = (HERE / "stub.c").read_text("utf-8")
    there = set(re.findall(r"^\w+ (cu\w+)\(", source, re.MULTILINE))
    names = sorted(name for name in wanted - there if not KEPT.search(name))
    rest = folder / "rest.c"
    rest.write_text("".join(f"int {name}(void) {{ return 0; }}\n" for name in names), "utf-8")
    headers = next(package("nvidia").glob("cu*/include"))
    library = folder / "libcuda.so.1"
    line = ["cc", "-shared", "-fPIC", "-fno-builtin", "-Wl,-soname,libcuda.so.1", f"-I{headers}"]
    line += ["-idirafter", str(nvidia / "include"), str(HERE / "stub.c"), str(rest)]
    subprocess.run([*line, "-o", str(library)], check=True)
    return library


def main() -> int:
    failed = 0
    with tempfile.TemporaryDirectory() as name:
        library = build(Path(name))
        for card, facts in CARDS.items():
            pretended = {f"PRETENDED_{key}": str(value) for key, value in facts.items()}
            environment = {
                **os.environ, **pretended, "PRETENDED_NAME": card, "LD_PRELOAD": str(library),
                "TRITON_LIBCUDA_PATH": str(library.parent),
            }  # fmt: skip
            print(card, flush=True)
            # One process for each: torch asks for a card's properties once.
            line = [sys.executable, "-m", "pytest", "-q", str(HERE), *sys.argv[1:]]
            failed |= subprocess.run(line, env=environment, check=False).returncode
    return failed


if __name__ == "__main__":
    sys.exit(main())
