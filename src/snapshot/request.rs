//! The command of a rescue: the request of its restore, in a canonical form.

use super::layout::UNFINISHED;

/// The option that leaves conflicts as they are.
pub const SKIPPING: &[u8] = b"--skip-conflicts";
/// The option that merges text files that are conflicts.
pub const MERGING: &[u8] = b"--merge";
/// No option, but a word that the command of a rescue gets once its restore, which was interrupted, is taken back as a whole.
pub const TAKEN_BACK: &[u8] = b"--taken-back";

/// Whether two commands are the same request, whatever they do about conflicts: the one that completes an interrupted
/// restore may have to decide on that. A rescue counts as the same under its unfinished and its final name.
pub fn is_same_request(one: &[Vec<u8>], other: &[Vec<u8>]) -> bool {
    let in_final_form = |command: &[Vec<u8>]| {
        let mut command = command.to_vec();
        command.retain(|word| word != SKIPPING && word != MERGING);
        if let [_, verb, snapshot, ..] = command.as_mut_slice()
            && verb == b"restore"
            && snapshot.ends_with(UNFINISHED.as_bytes())
        {
            snapshot.truncate(snapshot.len() - UNFINISHED.len());
        }
        command
    };
    in_final_form(one) == in_final_form(other)
}
