"""Tests that cannot hold on the row `confined`, each with the reason."""

from __future__ import annotations

_PATHS = "its folders are the machine's, at other paths than /work and /tmp"
_PROC = "a program sees no processes, and nothing of its own in /proc"
_PORTS = "it has no loopback of its own, so its programs cannot serve"
_MOUNTS = "a mount stands at its own path, and the test wants another"
_USER = "its programs have the host's user here"
_ONE_NETWORK = "its network and its terminals are the machine's"
_NAMES = "its /etc/hosts is the machine's, which lacks the names of rules"
_LEVEL = "the test looks for the walls of another level"
_DISK = "its files are on the machine's file system, which a watch measures"

EXPECTED: dict[str, str] = {
    "tests/sandbox/config/test_mounts.py": _MOUNTS,
    "tests/sandbox/network/test_egress_clients.py": _MOUNTS,
    "tests/sandbox/packages/test_source_builds.py::test_a_hostile_set_up": _MOUNTS,
    "tests/security/kernel/test_call_arguments.py::test_nobody_is_watched": _MOUNTS,
    "tests/sandbox/cell/test_surroundings.py::test_programs_serve": _PORTS,
    "tests/sandbox/cell/test_surroundings.py::test_the_machine_s_own_names": _PORTS,
    "tests/security/kernel/test_call_arguments.py::test_what_programs_need": _PORTS,
    "tests/security/test_exfiltration.py::test_a_cell_has_only_its_own": _PORTS,
    "tests/sandbox/cell/test_work_dir.py": _PATHS,
    "tests/sandbox/cell/test_surroundings.py::test_pythonpath": _PATHS,
    "tests/sandbox/client/test_download.py": _PATHS,
    "tests/sandbox/client/test_session_files.py::test_absolute_paths": _PATHS,
    "tests/sandbox/client/test_session_files.py::test_file_errors": _PATHS,
    "tests/sandbox/client/test_workdir.py::test_no_path_leads_out": _PATHS,
    "tests/sandbox/client/test_workdir.py::test_what_is_no_regular": _PATHS,
    "tests/sandbox/client/test_hostile_files.py::test_the_folder_of_forks": _PATHS,
    "tests/sandbox/packages/test_packages.py::test_a_session_has": _PATHS,
    "tests/sandbox/processes/test_watches.py": _PATHS,
    "tests/security/kernel/test_kernel.py::test_no_file_system": _PATHS,
    "tests/security/test_container.py::test_the_working_folder": _PATHS,
    "tests/security/test_exhaustion.py::test_scratch_space": _PATHS,
    "tests/security/test_faults.py::test_a_full_disk": _PATHS,
    "tests/security/test_exfiltration.py::test_errors_tell_nothing": _PATHS,
    "tests/sandbox/test_program_files.py::test_a_program_has_its_own": _PATHS,
    "tests/security/test_faults.py::test_cancelling_stops": _PROC,
    "tests/security/test_persistence.py": _PATHS,
    "tests/security/test_residue.py::test_no_memory_of_the_next": _PROC,
    "tests/sandbox/test_session_cell.py::test_no_process_outlives": _PROC,
    "tests/sandbox/test_session_state.py::test_processes_of_the_program": _PROC,
    "tests/sandbox/test_requirements_isolation.py": _PROC,
    "tests/sandbox/test_requirements_runs.py::test_a_large_program": _PROC,
    "tests/sandbox/network/test_command_network.py::test_without_network": _PROC,
    "tests/sandbox/network/test_egress.py::test_rules_change_on": _PROC,
    "tests/sandbox/network/test_egress.py::test_without_network": _PROC,
    "tests/security/kernel/test_call_arguments.py::test_all_programs": _PROC,
    "tests/security/kernel/test_kernel.py::test_there_is_nobody": _PROC,
    "tests/security/test_exfiltration.py::test_the_hosts_files": _PROC,
    "tests/security/test_exhaustion.py::test_a_daemon": _PROC,
    "tests/security/test_exhaustion.py::test_a_crash": _PROC,
    "tests/security/test_exhaustion.py::test_a_fork_bomb": _PROC,
    "tests/security/test_exhaustion.py::test_programs_go_before": _PROC,
    "tests/security/test_fallback.py::test_descriptors": _PROC,
    "tests/security/test_packages.py": _PROC,
    "tests/sandbox/cell/test_node.py::test_node_finds": _USER,
    "tests/sandbox/network/test_drivers.py": _NAMES,
    "tests/sandbox/packages/test_found.py::test_pip_in_a_program": _USER,
    "tests/sandbox/processes/test_commands.py::test_the_environment": _USER,
    "tests/sandbox/programs/test_function_transfer.py::test_a_sandboxed": _USER,
    "tests/sandbox/test_requirements_runs.py::test_there_is_no_network": _ONE_NETWORK,
    "tests/security/kernel/test_call_arguments.py::test_no_socket": _ONE_NETWORK,
    "tests/security/kernel/test_call_arguments.py::test_no_program_has": _ONE_NETWORK,
    "tests/security/kernel/test_terminals.py": _ONE_NETWORK,
    "tests/sandbox/processes/test_pauses.py::test_a_terminal": _ONE_NETWORK,
    "tests/sandbox/backends/test_forked_hosts.py": _LEVEL,
    "tests/sandbox/backends/test_docker_volumes.py": _LEVEL,
    "tests/security/kernel/test_call_arguments.py::test_huge_pages": _LEVEL,
    "tests/security/test_container.py": _LEVEL,
    "tests/sandbox/backends/test_leftovers.py": _LEVEL,
    "tests/sandbox/client/test_hostile_files.py::test_folders_of_any_depth": _DISK,
    "tests/sandbox/client/test_hostile_files.py::test_odd_artifacts": _DISK,
    "tests/sandbox/client/test_hostile_files.py::test_nothing_is_left_out": _DISK,
    "tests/security/kernel/test_oom.py": _DISK,
    "tests/sandbox/processes/test_archives.py": _DISK,
}
"""Reasons by the beginning of a test's id."""


def reason_of(test: str) -> str:
    """Return why a test cannot hold; empty if it can."""
    found = (reason for start, reason in EXPECTED.items() if test.startswith(start))
    return next(found, "")
