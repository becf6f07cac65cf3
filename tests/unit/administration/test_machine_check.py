"""`doctor` reports missing process sandboxing as a warning, never as an error."""

import pytest

from queryserver.administration import configuration_check
from queryserver.administration.doctor import State
from queryserver.platform.confinement import KernelSupport, detect_support


@pytest.mark.parametrize(
    ("support", "state", "said", "not_said"),
    [
        (KernelSupport(7, seccomp=True), State.OK, ["version 7"], ["no "]),
        (KernelSupport(0, seccomp=True), State.WARNING, ["without Landlock"], ["without seccomp"]),
        (KernelSupport(4, seccomp=False), State.WARNING, ["without seccomp"], ["without Landlock"]),
        (KernelSupport(0, seccomp=False), State.WARNING, ["without Landlock", "without seccomp"], []),
    ],
)
async def test_confinement_finding_reflects_kernel_support(monkeypatch, support, state, said, not_said):
    monkeypatch.setattr(configuration_check, "detect_support", lambda: support)
    (finding,) = await configuration_check.examine_confinement()
    assert finding.state is state
    assert bool(finding.to_do) is (state is State.WARNING)
    assert all(one in finding.what for one in said)
    assert not any(one in finding.what for one in not_said)


async def test_confinement_is_examined_on_this_kernel():
    (finding,) = await configuration_check.examine_confinement()
    support = detect_support()
    assert finding.state is (State.OK if support.landlock_abi and support.seccomp else State.WARNING)
