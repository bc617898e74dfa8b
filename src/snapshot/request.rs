//! The command of a rescue: the request of its restore, in a canonical form.

use super::layout::UNFINISHED;

/// The option to leave conflicts as they are.
pub const SKIPPING: &[u8] = b"--skip-conflicts";
/// The option to merge text that is a conflict.
pub const MERGING: &[u8] = b"--merge";

/// Whether two commands are the same request: an interrupted restore of an unfinished rescue may have ended that.
///
/// What becomes of conflicts may be decided only then.
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
