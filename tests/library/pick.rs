//! `undo -i` at a terminal, and the plan of an undo as a diff.

use std::fs;

use super::{log, read, run, verb};
use crate::support::{BINARY, Place, Terminal, User, has};

const ASKED: &str = "g to go)> ";

fn changed_place(user: User) -> Place {
    let place = Place::of(user);
    place.write("f", "1\n2\n3\n");
    place.write("gone/a", "a\n");
    place.write("gone/b", "b\n");
    run(&place, &[], "sed -i s/2/two/ f; rm -r gone; echo new > 'new one'; printf 'a\\0' > binary");
    place
}

#[test]
fn paths_are_picked_at_a_terminal() {
    for user in [User::Current, User::Nobody] {
        let Some(mut terminal) = Terminal::new(changed_place(user), &[], &[]) else { return };
        let undo = format!("{BINARY} undo -i");
        terminal.line(&undo, "undo ");
        let list = terminal.until(ASKED).replace("\r\n", "\n");
        for line in [
            "  1 * remove      binary  binary\n",
            "  2 * replace     f  +1 -1\n",
            "  3 * create      gone\n",
            "  4 * create      gone/a  +1 -0\n",
            "  6 * remove      new one  +0 -1\n",
            "6 marked; ",
        ] {
            assert!(list.contains(line), "{line}: {list}");
        }
        terminal.line("d 2", "-two");
        terminal.until(ASKED);
        terminal.line("9", "the list has the numbers 1 to 6");
        terminal.until(ASKED);
        terminal.line("q", "nothing was changed");
        terminal.status(1);
        assert!(!terminal.place.at("gone").exists());
        // A file of a directory is taken out, and what is left of it is undone.
        terminal.line(&undo, ASKED);
        terminal.line("1 2 5,6", ASKED);
        terminal.line("g", "2 paths put back");
        terminal.status(0);
        let place = &terminal.place;
        assert_eq!((read(place, "gone/a").as_deref(), place.at("gone/b").exists()), (Some("a\n"), false));
        assert!(read(place, "f").unwrap().contains("two") && place.at("new one").exists());
        assert_eq!(log(place, &[])[0]["partly_undone"], true);
        // The end of the input is no consent.
        terminal.line(&undo, ASKED);
        terminal.keys("\x04");
        terminal.until("nothing was changed");
        terminal.status(1);
        // All of the rest.
        terminal.line(&undo, ASKED);
        terminal.line("n", "0 marked");
        terminal.until(ASKED);
        terminal.line("g", "nothing is marked");
        terminal.until(ASKED);
        terminal.line("a", ASKED);
        terminal.line("g", "put back to the state before");
        terminal.status(0);
        let place = terminal.end();
        assert_eq!(read(&place, "f").as_deref(), Some("1\n2\n3\n"));
        assert!(place.at("gone/b").exists() && !place.at("new one").exists());
        assert!(log(&place, &[])[0]["undone"].is_string());
    }
}

#[test]
fn both_names_of_a_renamed_file_go_together() {
    let place = Place::new();
    place.write("x", "keep");
    run(&place, &[], "mv x y; echo > other");
    let Some(mut terminal) = Terminal::new(place, &[], &[]) else { return };
    terminal.line(&format!("{BINARY} undo -i"), "  2 * create      x");
    terminal.until(ASKED);
    terminal.line("1 2", "1 marked");
    terminal.until(ASKED);
    terminal.line("g", "2 paths put back");
    terminal.status(0);
    let place = terminal.end();
    assert_eq!((read(&place, "x").as_deref(), place.at("y").exists()), (Some("keep"), false));
    assert!(place.at("other").exists());
}

#[test]
fn diff_of_the_plan_has_modes_and_no_times() {
    if !has("git") {
        return;
    }
    let place = Place::new();
    place.write("f", "1\n2\n3\n4\n5\n6\n7\n");
    place.write("touched", "same\n");
    run(&place, &[], "sed -i s/2/two/ f; chmod +x f; touch -d @0 touched");
    place.prepare("sed -i s/7/seven/ f");
    let plan = verb(&place, &["undo", "--dry-run", "--diff", "--merge"]).expect(0);
    assert!(!plan.stdout.contains("touched"), "{plan:?}");
    assert!(plan.stdout.contains("old mode 100755\nnew mode 100644\n"), "{plan:?}");
    fs::write(place.base().join("patch"), &plan.stdout).unwrap();
    place.prepare("git init -q; git apply --check ../patch");
}

#[test]
fn conflicts_are_not_picked_unless_they_are_to_be_merged() {
    let place = Place::new();
    place.write("f", "1\n2\n3\n4\n5\n6\n7\n");
    run(&place, &[], "sed -i s/2/two/ f; echo > g");
    place.prepare("sed -i s/7/seven/ f");
    let Some(mut terminal) = Terminal::new(place, &[], &[]) else { return };
    terminal.line(&format!("{BINARY} undo -i"), "(conflict: edited since: ");
    terminal.until(ASKED);
    terminal.line("1", "1 is a conflict: ");
    terminal.until(ASKED);
    terminal.line("q", "nothing was changed");
    terminal.line(&format!("{BINARY} undo -i --merge"), "  1 * merge       f  +1 -1");
    terminal.until(ASKED);
    terminal.line("g", "2 paths put back");
    terminal.status(0);
    let place = terminal.end();
    assert_eq!(read(&place, "f").as_deref(), Some("1\n2\n3\n4\n5\n6\nseven\n"));
}

#[test]
fn undo_asks_only_at_a_terminal() {
    let place = changed_place(User::Current);
    let refused = verb(&place, &["undo", "-i"]).expect(2);
    assert_eq!(refused.stderr, "agent-snapshot: undo -i asks at a terminal, and this is none\n");
    verb(&place, &["undo", "-i", "--json"]).expect(2);
    assert!(!place.at("gone").exists());
}

#[test]
fn plan_is_a_diff_that_does_what_the_undo_would() {
    if !has("git") {
        return;
    }
    let place = Place::new();
    place.write("f", "1\n2\n3\n4\n5\n6\n7\n8\n9\n");
    place.write("gone/a b", "a\n");
    place.write("kept", "k\n");
    place.prepare("ln -s f link; printf 'a\\0b' > binary; echo x > becomes; chmod +x kept");
    let script = "sed -i s/2/two/ f; rm -r gone; echo made > made; ln -sf kept link; printf 'c\\0d' > binary; \
        ln -sf f becomes; chmod -x kept";
    run(&place, &[], script);
    // The later edit is in the diff.
    place.prepare("sed -i s/8/eight/ f; git init -q");
    let plan = verb(&place, &["undo", "--dry-run", "--diff", "--merge"]).expect(0);
    assert!(plan.stdout.starts_with("diff --git ") && !plan.stdout.contains("put back"), "{plan:?}");
    assert!(plan.stderr.starts_with("agent-snapshot: undo ") && plan.stderr.lines().count() == 1, "{plan:?}");
    fs::write(place.base().join("patch"), &plan.stdout).unwrap();
    place.prepare("cp -a . ../copy; cd ../copy; git apply ../patch");
    let state = |directory: &str| {
        let files = "head -c 99 f binary 'gone/a b' kept becomes; readlink link; stat -c '%A %n' kept f; ls";
        place.prepare(&format!("cd {directory}; {files}"))
    };
    let by_patch = state("../copy");
    assert!(by_patch.contains("eight") && !by_patch.contains("two"), "{by_patch}");
    verb(&place, &["undo", "--merge"]).expect(0);
    assert_eq!(state("."), by_patch);
    // Of a restore, too; a conflict is one.
    verb(&place, &["redo"]).expect(0);
    let id = log(&place, &[])[0]["id"].as_str().unwrap().to_owned();
    let of_restore = verb(&place, &["restore", "--before", "--merge", "--dry-run", "--diff", &id]).expect(0);
    assert_eq!(of_restore.stdout, plan.stdout);
    let refused = verb(&place, &["undo", "--dry-run", "--diff"]).expect(1);
    assert!(refused.stdout.is_empty() && refused.stderr.contains("edited since"), "{refused:?}");
    verb(&place, &["undo", "--diff"]).expect(2);
}
