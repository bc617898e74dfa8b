//! The README's list of system calls is the table's.

use agent_snapshot::trace::syscalls;

/// The list between its two marks, one name after the other.
fn listed(readme: &str) -> Vec<String> {
    let list = readme.split("<!-- calls -->").nth(1).expect("the README has the marks");
    list.split_whitespace().map(|name| name.trim_matches([',', '`', '.']).to_owned()).collect()
}

#[test]
fn the_readme_lists_every_call_of_the_table() {
    let readme = include_str!("../README.md");
    let mut names: Vec<_> = syscalls::rows().iter().map(|row| row.name.to_owned()).collect();
    names.sort();
    let expected: Vec<_> = names.iter().map(|name| format!("`{name}`")).collect();
    assert_eq!(listed(readme), names, "the list should be:\n{}", expected.join(", "));
}
