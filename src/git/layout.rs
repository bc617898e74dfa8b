//! Which part of a git directory a path is: gitrepository-layout(5).

use crate::fs;

/// Whether a path is named `.git`, or lies below such a name.
pub fn is_in_git_directory(path: &[u8]) -> bool {
    path.split(|byte| *byte == b'/').any(|name| name == b".git")
}

/// The objects directory that a path is in, and the path below it; none if the path has not the form of one.
///
/// A branch may be named `objects`, so the names below it are looked at, too.
pub fn in_objects_directory(path: &[u8]) -> Option<(&[u8], &[u8])> {
    const NAME: &[u8] = b"/objects";
    let ends = path.windows(NAME.len()).enumerate().rev().filter(|(_, window)| *window == NAME);
    ends.map(|(start, _)| path.split_at(start + NAME.len())).find_map(|(directory, rest)| {
        let below = match rest {
            [] => rest,
            [b'/', below @ ..] => below,
            _ => return None,
        };
        let is_branch = directory.windows(6).any(|window| window == b"/refs/" || window == b"/logs/");
        let first = below.split(|byte| *byte == b'/').next().unwrap_or_default();
        let is_known = first.is_empty()
            || is_fan_out(first)
            || matches!(first, b"pack" | b"info")
            || is_temporary(first);
        (is_known && !is_branch).then_some((directory, below))
    })
}

/// Whether a path in a git directory is an object that Git is still writing, or one in quarantine.
pub fn is_temporary_object(path: &[u8]) -> bool {
    in_objects_directory(path).is_some_and(|(_, below)| below.split(|byte| *byte == b'/').any(is_temporary))
}

fn is_temporary(component: &[u8]) -> bool {
    [b"tmp_".as_slice(), b".tmp-", b"incoming-"].iter().any(|prefix| component.starts_with(prefix))
}

/// Whether a directory of this name holds loose objects: the first two digits of their ids.
fn is_fan_out(name: &[u8]) -> bool {
    name.len() == 2 && is_hex(name)
}

/// Whether `fan`/`rest` is the name of a loose object's file.
pub(super) fn is_loose(fan: &[u8], rest: &[u8]) -> bool {
    is_fan_out(fan) && matches!(rest.len(), 38 | 62) && is_hex(rest)
}

fn is_hex(name: &[u8]) -> bool {
    name.iter().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'))
}

/// Whether a path below an objects directory is made from the objects alone: Git works without it, and makes it again.
fn is_derived(below: &[u8]) -> bool {
    let name = below.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    below == b"info/packs"
        || below.starts_with(b"info/commit-graph")
        || below.starts_with(b"pack/") && name.starts_with(b"multi-pack-index")
}

/// Whether a path below an objects directory is that of an object, a pack, or a directory of objects.
fn is_object(below: &[u8]) -> bool {
    const OF_PACKS: [&[u8]; 6] = [b"pack", b"idx", b"rev", b"bitmap", b"mtimes", b"promisor"];
    let names: Vec<&[u8]> = below.split(|byte| *byte == b'/').collect();
    match names[..] {
        [fan] => is_fan_out(fan),
        [b"pack", name] => {
            let extension = name.rsplit(|byte| *byte == b'.').next().unwrap_or_default();
            name.starts_with(b"pack-") && OF_PACKS.contains(&extension)
        }
        [fan, rest] => is_loose(fan, rest),
        _ => false,
    }
}

/// Whether an undo does not miss what became of `path`, in a git directory: it was added to the objects of a repository
/// that was there before and is there now, or is made from them alone.
///
/// `existed` says whether a path was there before.
pub fn is_left_alone(path: &[u8], existed: impl Fn(&[u8]) -> bool) -> bool {
    in_objects_directory(path).is_some_and(|(directory, below)| {
        existed(directory)
            && (!existed(path) && is_object(below) || is_derived(below))
            && fs::lstat(directory).is_ok_and(|found| found.is_some())
    })
}

/// Whether objects that were in a repository may be out of its reach once `path`, which is no directory, is removed or
/// written to: an object, a pack, a list of alternates, or a file that names another git directory. `existed` says
/// whether it was there before.
pub fn leads_to_objects(path: &[u8], existed: bool) -> bool {
    if path.ends_with(b"/commondir") || path.ends_with(b"/objects/info/alternates") {
        return true;
    }
    let is_object = || in_objects_directory(path).is_some_and(|(_, below)| !is_derived(below));
    existed && (path.ends_with(b"/.git") || is_object() && !is_temporary_object(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_objects_are_told_from_branches_named_alike() {
        let found = |path: &'static str| {
            in_objects_directory(path.as_bytes())
                .map(|(directory, below)| [directory, below].map(|part| std::str::from_utf8(part).unwrap()))
        };
        assert_eq!(found("/r/.git/objects"), Some(["/r/.git/objects", ""]));
        assert_eq!(found("/r/.git/objects/ab/cd"), Some(["/r/.git/objects", "ab/cd"]));
        assert_eq!(found("/objects/.git/objects/pack/x"), Some(["/objects/.git/objects", "pack/x"]));
        assert_eq!(found("/objects/.git/HEAD"), None);
        assert_eq!(found("/r/.git/refs/heads/objects/ab"), None);
        assert_eq!(found("/r/.git/logs/refs/heads/objects"), None);
        assert_eq!(found("/r/.git/objects2/ab"), None);
    }

    #[test]
    fn files_that_lead_to_objects_are_those_that_a_lookup_reads() {
        for (path, leads) in [
            ("/r/.git", true),
            ("/r/.git/worktrees/w/commondir", true),
            ("/r/.git/objects/ab/0000000000000000000000000000000000000000", true),
            ("/bare.git/objects/pack/pack-1.idx", true),
            ("/r/.git/objects/info/alternates", true),
            ("/r/.git/objects/info/commit-graph", false),
            ("/r/.git/objects/ab/tmp_obj_x", false),
            ("/r/.git/index.lock", false),
            ("/r/.git/HEAD", false),
            ("/r/f", false),
        ] {
            assert_eq!(leads_to_objects(path.as_bytes(), true), leads, "{path}");
        }
        // What is added takes nothing away, unless it changes where objects are looked for.
        assert!(leads_to_objects(b"/r/.git/objects/info/alternates", false));
        assert!(!leads_to_objects(b"/r/.git/objects/pack/pack-1.pack", false));
    }

    #[test]
    fn temporary_and_derived_files_are_known_by_their_names() {
        for path in [
            "ab/tmp_obj_x",
            "pack/tmp_pack_x",
            "pack/.tmp-12-pack-ab.idx",
            "tmp_objdir-incoming-x/pack/pack-1.pack",
            "incoming-x",
        ] {
            assert!(is_temporary_object(&[b"/r/.git/objects/", path.as_bytes()].concat()), "{path}");
        }
        assert!(!is_temporary_object(b"/r/.git/objects/ab/cdef"));
        assert!(!is_temporary_object(b"/r/.git/refs/heads/tmp_x"));
        for (below, derived) in [
            ("info/commit-graph", true),
            ("info/commit-graphs/commit-graph-chain", true),
            ("info/packs", true),
            ("pack/multi-pack-index", true),
            ("info/alternates", false),
            ("pack/pack-1.idx", false),
        ] {
            assert_eq!(is_derived(below.as_bytes()), derived, "{below}");
        }
    }
}
