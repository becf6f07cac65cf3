"""Rewrites the assertions of test files once for all workers of a run."""

import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from types import SimpleNamespace

from _pytest.assertion import rewrite


def rewrite_assertions(folder: Path) -> None:
    """Cache the rewritten bytecode of all test files in `folder` whose cached bytecode is missing or outdated. Uses all
    cores.
    """
    if sys.dont_write_bytecode:
        return
    files = [*folder.rglob("test_*.py"), *folder.rglob("conftest.py"), *folder.glob("contract/*_*.py")]
    if stale := [file for file in files if rewrite._read_pyc(file, _kept(file)) is None]:
        with ProcessPoolExecutor() as pool:
            list(pool.map(_rewrite, stale, chunksize=8))


def _kept(file: Path) -> Path:
    return rewrite.get_cache_dir(file) / (file.stem + rewrite.PYC_TAIL)


def _rewrite(file: Path) -> None:
    kept = _kept(file)
    rewrite.try_makedirs(kept.parent)
    source_hash, code = rewrite._rewrite_test(file, None)
    rewrite._write_pyc(SimpleNamespace(trace=print), code, source_hash, kept)
