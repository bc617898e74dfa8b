//! Makes long lists of paths short: paths of one directory become that directory and a count.
//!
//! Knows only names; `list.rs` has their records.

use std::cmp::Ordering;

/// A line of a folded list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FoldedRow {
    /// The name at this index.
    One(usize),
    /// Names that share a directory, in its place.
    Folded {
        /// How much of the first member's name is the directory, its slash included.
        prefix: usize,
        /// The indexes of the names.
        members: Vec<usize>,
        /// What of the directory they are.
        what: FoldedPart,
    },
}

/// Which part of a directory is folded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FoldedPart {
    /// The directory itself, which is a member, and all beneath it.
    Whole,
    /// All beneath it.
    Beneath,
    /// What is directly in it and has nothing beneath it.
    Direct,
    /// What is left of that after some were listed.
    Rest,
}

/// Orders names so that a directory comes right before what is beneath it, and absolute names last.
pub fn by_component(one: &[u8], other: &[u8]) -> Ordering {
    let key = |byte: &u8| if *byte == b'/' { 0 } else { u16::from(*byte) + 1 };
    let is_absolute = |name: &[u8]| name.starts_with(b"/");
    let order = is_absolute(one).cmp(&is_absolute(other));
    order.then_with(|| one.iter().map(key).cmp(other.iter().map(key)))
}

/// Lists `names`, which are in the order of [`by_component`], in at most about `budget` lines.
pub fn fold(names: &[&[u8]], budget: usize) -> Vec<FoldedRow> {
    if names.len() <= budget {
        return (0..names.len()).map(FoldedRow::One).collect();
    }
    let (inside, outside): (Vec<_>, Vec<_>) =
        (0..names.len()).partition(|index| !names[*index].starts_with(b"/"));
    let mut nodes = Vec::new();
    for (prefix, members) in [(0, inside), (1, outside)] {
        nodes.extend(NameGroup::new(names, prefix, members, FoldedPart::Beneath));
    }
    while let Some((at, parts)) = best_to_open(names, &nodes, budget) {
        nodes.splice(at..=at, parts);
    }
    let spare = (budget + 1).saturating_sub(nodes.len());
    list_some(&mut nodes, spare);
    nodes.into_iter().map(NameGroup::into_row).collect()
}

/// What becomes one line, or is opened into several.
#[derive(Debug)]
struct NameGroup {
    prefix: usize,
    members: Vec<usize>,
    part: FoldedPart,
}

impl NameGroup {
    /// A node of the names that share `prefix`, as deep in the directory tree as they all are.
    fn new(names: &[&[u8]], prefix: usize, members: Vec<usize>, part: FoldedPart) -> Option<NameGroup> {
        let mut node = NameGroup { prefix, members, part };
        // A directory whose only entry is a directory is not worth a line of its own.
        while node.part == FoldedPart::Beneath && node.members.len() > 1 {
            let component = component(names[*node.members.first()?], node.prefix);
            let shared = |index: &usize| self::component(names[*index], node.prefix) == component;
            if !node.members.iter().all(shared) {
                break;
            }
            let first = names[*node.members.first()?].len();
            node.prefix += component.len() + 1;
            if first < node.prefix {
                node.part = FoldedPart::Whole;
            }
        }
        (!node.members.is_empty()).then_some(node)
    }

    /// The lines that the node would be if it were opened.
    fn opened(&self, names: &[&[u8]]) -> Vec<NameGroup> {
        let mut parts = Vec::new();
        let mut members = self.members.as_slice();
        if self.part == FoldedPart::Whole {
            let (own, beneath) = members.split_at(1);
            parts.push(NameGroup { prefix: self.prefix, members: own.to_vec(), part: FoldedPart::Direct });
            members = beneath;
        }
        let mut direct = Vec::new();
        let same = |one: &usize, other: &usize| {
            component(names[*one], self.prefix) == component(names[*other], self.prefix)
        };
        for group in members.chunk_by(same) {
            match group {
                [one] if !names[*one][self.prefix..].contains(&b'/') => direct.push(*one),
                group => {
                    parts.extend(NameGroup::new(names, self.prefix, group.to_vec(), FoldedPart::Beneath))
                }
            }
        }
        if !direct.is_empty() {
            parts.push(NameGroup { prefix: self.prefix, members: direct, part: FoldedPart::Direct });
        }
        parts
    }

    /// A line for each member.
    fn each(&self) -> Vec<NameGroup> {
        let one = |index: &usize| NameGroup {
            prefix: self.prefix,
            members: vec![*index],
            part: FoldedPart::Direct,
        };
        self.members.iter().map(one).collect()
    }

    fn into_row(self) -> FoldedRow {
        match self.members.as_slice() {
            [one] => FoldedRow::One(*one),
            _ => FoldedRow::Folded { prefix: self.prefix, members: self.members, what: self.part },
        }
    }
}

/// The component of `name` after its first `prefix` bytes.
fn component(name: &[u8], prefix: usize) -> &[u8] {
    let rest = name.get(prefix..).unwrap_or_default();
    &rest[..rest.iter().position(|byte| *byte == b'/').unwrap_or(rest.len())]
}

/// The largest group that is worth opening and whose parts fit, with those parts.
fn best_to_open(names: &[&[u8]], nodes: &[NameGroup], budget: usize) -> Option<(usize, Vec<NameGroup>)> {
    let mut candidates: Vec<usize> = (0..nodes.len()).filter(|at| nodes[*at].members.len() > 1).collect();
    candidates.sort_by_key(|at| std::cmp::Reverse(nodes[*at].members.len()));
    let fits = |parts: usize| nodes.len() + parts <= budget + 1;
    candidates.into_iter().find_map(|at| {
        let node = &nodes[at];
        if node.part == FoldedPart::Direct {
            return fits(node.members.len()).then(|| (at, node.each()));
        }
        let parts = node.opened(names);
        // A directory and a heap of files in it say no more in two lines than in one.
        let is_heap =
            node.part == FoldedPart::Whole && parts.len() == 2 && parts[1].part == FoldedPart::Direct;
        (fits(parts.len()) && (!is_heap || fits(node.members.len()))).then_some((at, parts))
    })
}

/// Lists the first files of the largest heap, if there is room for some.
fn list_some(nodes: &mut Vec<NameGroup>, spare: usize) {
    const WORTH: usize = 3;
    const ENOUGH: usize = 10;
    let heaps =
        (0..nodes.len()).filter(|at| nodes[*at].part == FoldedPart::Direct && nodes[*at].members.len() > 1);
    let Some(at) = heaps.max_by_key(|at| nodes[*at].members.len()) else { return };
    if spare <= WORTH {
        return;
    }
    let heap = nodes.remove(at);
    let mut parts = heap.each();
    parts.truncate((spare - 1).min(ENOUGH));
    let members = heap.members[parts.len()..].to_vec();
    parts.push(NameGroup { prefix: heap.prefix, members, part: FoldedPart::Rest });
    nodes.splice(at..at, parts);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The lines of a folded list, in short.
    fn folded(names: &[&str], budget: usize) -> Vec<String> {
        let mut names: Vec<_> = names.iter().map(|name| name.as_bytes()).collect();
        names.sort_by(|one, other| by_component(one, other));
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        let mut seen = Vec::new();
        let rows = fold(&names, budget);
        let lines = rows.iter().map(|row| match row {
            FoldedRow::One(index) => {
                seen.push(*index);
                text(names[*index])
            }
            FoldedRow::Folded { prefix, members, what } => {
                seen.extend(members);
                let first = names[members[0]];
                let dir = text(&first[..first.len().min(*prefix)]);
                format!("{dir} {what:?} {}", members.len())
            }
        });
        let lines = lines.collect();
        seen.sort_unstable();
        assert!(seen.into_iter().eq(0..names.len()), "each name is in one line");
        lines
    }

    fn numbered(format: impl Fn(usize) -> String, count: usize) -> Vec<String> {
        (0..count).map(format).collect()
    }

    #[test]
    fn what_fits_is_listed() {
        assert_eq!(folded(&["a/x", "a", "a-b", "/etc/x"], 4), ["a", "a/x", "a-b", "/etc/x"]);
        assert_eq!(folded(&[], 4), [""; 0]);
    }

    #[test]
    fn the_heaps_are_folded_and_what_lies_beside_them_is_listed() {
        let many = numbered(|index| format!("node_modules/p{}/f{index}", index % 40), 400);
        let mut names: Vec<&str> = many.iter().map(String::as_str).collect();
        names.extend(["node_modules", "src", "src/a", "src/b", "x", "/etc/passwd"]);
        assert_eq!(
            folded(&names, 10),
            ["node_modules Whole 401", "src", "src/a", "src/b", "x", "/etc/passwd"]
        );
        assert_eq!(folded(&names, 5), ["node_modules Whole 401", "src Whole 3", "x", "/etc/passwd"]);
    }

    #[test]
    fn of_a_heap_of_files_the_first_are_listed() {
        let many = numbered(|index| format!("out/f{index:03}"), 100);
        let names: Vec<&str> = many.iter().map(String::as_str).collect();
        assert_eq!(folded(&names, 5), ["out/f000", "out/f001", "out/f002", "out/f003", "out/ Rest 96"]);
    }

    #[test]
    fn directories_that_hold_one_directory_are_one_line() {
        let many = numbered(|index| format!("/usr/lib/python3/{}/m{index}", ["a", "b"][index % 2]), 20);
        let names: Vec<&str> = many.iter().map(String::as_str).collect();
        assert_eq!(folded(&names, 4), ["/usr/lib/python3/a/ Direct 10", "/usr/lib/python3/b/ Direct 10"]);
        assert_eq!(folded(&names, 1), ["/usr/lib/python3/ Beneath 20"]);
    }

    proptest::proptest! {
        #[test]
        fn any_names_fit_and_none_is_lost(
            names in proptest::collection::btree_set("/?[a-c]{1,2}(/[a-c]{1,2}){0,4}", 1..120),
            budget in 2_usize..40,
        ) {
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            proptest::prop_assert!(folded(&names, budget).len() <= budget);
        }
    }
}
