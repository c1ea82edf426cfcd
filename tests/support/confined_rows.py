"""Tests that cannot hold on the row `confined`, each with the reason.

They fail there, and CI says so if one does not: a test that holds has no place here.
"""

from __future__ import annotations

MEASURED = (
    "its files are on the machine's file system: measured, and one by one bounded"
)
"""A test of these holds where it ends before the next measurement."""

EXPECTED: dict[str, tuple[str, ...]] = {
    "its folders are the machine's, at other paths than /work and /tmp": (
        "sandbox/cell/test_surroundings.py::test_pythonpath_leads_imports",
        "sandbox/cell/test_work_dir.py::test_file_calls_and_forks_mean_the_same_folder",
        "sandbox/cell/test_work_dir.py::test_programs_and_commands_start_there",
        "sandbox/client/test_hostile_files.py::test_the_folder_of_forks_leads_nowhere_else",
        "sandbox/client/test_session_files.py::test_absolute_paths_begin_at_the_root_of_the_cell",
        "sandbox/client/test_session_files.py::test_file_errors_tell_why_and_what_to_do",
        "sandbox/packages/test_packages.py::test_a_session_has_packages_and_can_get_more",
        "sandbox/processes/test_watches.py::test_absolute_paths_are_the_cells",
        "sandbox/test_requirements_isolation.py::test_no_word_of_a_shell_reaches_the_host",
        "security/kernel/test_kernel.py::test_no_file_system_is_mounted",
        "security/test_container.py::test_the_working_folder_is_the_cells_own",
        "security/test_exfiltration.py::test_errors_tell_nothing_of_the_host",
        "security/test_exhaustion.py::test_scratch_space_is_capped",
        "security/test_persistence.py::test_a_ready_cell_is_used_once",
    ),
    "a mount stands at its own path, and the test wants another": (
        "sandbox/config/test_mounts.py::test_a_mount_cannot_be_changed_from_inside",
        "sandbox/config/test_mounts.py::test_a_read_only_mount_cannot_be_written",
        "sandbox/config/test_mounts.py::test_links_in_a_mount_lead_nowhere",
        "sandbox/config/test_mounts.py::test_programs_read_what_is_mounted",
        "sandbox/config/test_mounts.py::test_what_is_written_stays_on_the_host",
        "sandbox/network/test_credential_programs.py::test_a_program_sends_the_value_and_has_the_placeholder",
        "sandbox/network/test_drivers.py::test_a_driver_of_a_database_reaches_its_rule",
        "sandbox/network/test_drivers.py::test_a_host_that_does_not_answer_is_recorded",
        "sandbox/network/test_drivers.py::test_a_run_with_fewer_rules_reaches_no_more",
        "sandbox/network/test_drivers.py::test_http_is_for_the_host_of_the_rule",
        "sandbox/network/test_drivers.py::test_rules_that_change_hold_for_listeners",
        "sandbox/network/test_drivers.py::test_runs_and_commands_of_a_session_take_turns",
        "sandbox/network/test_egress_clients.py::test_an_agent_of_node_loses_no_request",
        "sandbox/network/test_egress_clients.py::test_curl",
        "sandbox/network/test_egress_clients.py::test_git_over_https",
        "sandbox/network/test_egress_clients.py::test_node_fetches",
        "sandbox/network/test_egress_clients.py::test_pip",
        "sandbox/network/test_egress_clients.py::test_pooled_clients_lose_no_request",
        "sandbox/network/test_egress_clients.py::test_python_libraries",
        "sandbox/packages/test_source_builds.py::test_a_hostile_set_up_program_reaches_nothing",
        "security/kernel/test_call_arguments.py::test_nobody_is_watched_or_held_up_through_a_mount",
    ),
    "a program sees no processes in /proc, and no network there": (
        "sandbox/network/test_command_network.py::test_without_network_a_command_has_none",
        "sandbox/network/test_egress.py::test_rules_change_on_a_live_session",
        "sandbox/network/test_egress.py::test_without_network_there_is_no_proxy",
        "sandbox/test_requirements_isolation.py::test_grandchildren_end_with_their_run",
        "sandbox/processes/test_watches.py::test_looks_take_a_bounded_part_of_the_time",
        "sandbox/test_session_cell.py::test_no_process_outlives_its_run",
        "sandbox/test_session_state.py::test_processes_of_the_program_live_on_and_daemons_do_not",
        "security/kernel/test_call_arguments.py::test_all_programs_of_a_cell_share_one_filter",
        "security/kernel/test_kernel.py::test_there_is_nobody_and_nothing_else_in_a_cell",
        "security/test_exfiltration.py::test_a_cell_has_only_its_own_loopback",
        "security/test_exfiltration.py::test_the_hosts_files_and_variables_are_not_there",
        "security/test_exhaustion.py::test_a_crash_leaves_no_core",
        "security/test_exhaustion.py::test_a_daemon_does_not_outlive_its_run",
        "security/test_exhaustion.py::test_a_fork_bomb_meets_the_limit",
        "security/test_exhaustion.py::test_programs_go_before_the_host",
        "security/test_faults.py::test_cancelling_stops_the_program_and_has_one_outcome",
        "security/test_packages.py::test_a_program_finds_no_layer_but_its_own",
        "security/test_residue.py::test_no_memory_of_a_fresh_run_has_a_word_of_its_session",
        "security/test_residue.py::test_no_memory_of_the_next_program_has_a_word_of_the_last_one",
    ),
    "its programs have the host's user here, or one of their own, and not 10001": (
        "sandbox/cell/test_node.py::test_node_finds_what_it_needs_and_nothing_else",
        "sandbox/packages/test_found.py::test_pip_in_a_program",
        "sandbox/processes/test_commands.py::test_the_environment_and_the_folder",
        "sandbox/programs/test_function_transfer.py::test_a_sandboxed_tool_may_be_a_closure",
    ),
    "its network, ports, name and terminals are the machine's; it has no datagrams": (
        "sandbox/cell/test_surroundings.py::test_the_machine_s_own_names_lead_to_itself",
        "sandbox/cell/test_surroundings.py::test_programs_serve_at_any_port",
        "sandbox/test_requirements_runs.py::test_there_is_no_network_on_any_backend",
        "security/kernel/test_call_arguments.py::test_no_program_has_a_filter_of_its_own",
        "security/kernel/test_call_arguments.py::test_no_socket_has_the_kernel_look_for_a_module",
        "security/kernel/test_call_arguments.py::test_what_programs_need_works_as_before",
        "security/kernel/test_terminals.py::test_a_cell_has_few_pseudo_terminals",
        "security/kernel/test_terminals.py::test_programs_talk_over_terminals_of_their_cell",
        "security/kernel/test_terminals.py::test_terminals_end_with_the_run_that_opened_them",
    ),
    "the test looks for the walls of another level": (
        "sandbox/backends/test_docker_volumes.py::test_volumes_of_an_image_are_no_place_to_write",
        "sandbox/backends/test_forked_hosts.py::test_cells_end_with_a_host_that_forked",
        "security/kernel/test_call_arguments.py::test_huge_pages_are_not_to_be_had",
        "security/test_container.py::test_namespaces_are_not_the_hosts",
        "security/test_container.py::test_no_wall_is_claimed_that_does_not_stand",
        "security/test_container.py::test_only_scratch_space_can_be_written",
        "security/test_container.py::test_programs_have_no_rights",
        "security/test_container.py::test_setuid_programs_keep_the_uid",
        "security/test_container.py::test_two_cells_do_not_see_each_other",
    ),
    MEASURED: (
        "sandbox/client/test_download.py::test_a_download_has_a_limit_and_leaves_nothing_past_it",
        "sandbox/client/test_download.py::test_holes_in_files_stay_holes",
        "sandbox/client/test_hostile_files.py::test_folders_of_any_depth_are_listed_and_removed",
        "sandbox/client/test_hostile_files.py::test_odd_artifacts_cost_no_result[deep]",
        "security/kernel/test_oom.py::test_a_full_cell_is_out_of_memory_and_not_lost",
    ),
}
"""Tests below `tests/` by reason. A name without parameters means all of them."""

_REASONS = {test: reason for reason, tests in EXPECTED.items() for test in tests}


def reason_of(test: str) -> str:
    """Return why a test cannot hold; empty if it can.

    Args:
        test: Its id, as pytest has it on this row.
    """
    named = test.replace("[confined-", "[").replace("[confined]", "")
    name = named.removeprefix("tests/")
    return _REASONS.get(name) or _REASONS.get(name.partition("[")[0], "")
