//! The session that a recording or a verb belongs to: the commands of one run of an agent.
//!
//! Where there is one, verbs see that session's snapshots alone. It is a guard rail against mixing, not a security
//! boundary. A person's shell has no session, and sees all.

/// The session: the one that an option chooses, else the one in the environment: ours, or an agent's.
pub fn session(chosen: Option<&str>) -> Option<String> {
    let variables = ["AGENT_SNAPSHOT_SESSION", "CLAUDE_CODE_SESSION_ID", "CODEX_THREAD_ID"];
    let of_environment =
        || variables.iter().find_map(|name| std::env::var(name).ok().filter(|id| !id.is_empty()));
    chosen.filter(|id| !id.is_empty()).map(str::to_owned).or_else(of_environment)
}
