//! Real tools: recalled where nothing has changed, and run where it has.

use std::fs;

use super::{finish, recall, recall_with, recalling};
use crate::support::{Place, SmallFilesystem, copy_program, needs_root};

#[test]
fn make_runs_again_when_a_header_is_touched_or_edited() {
    let place = Place::new();
    if !place.can_run(&["make", "--version"]) || !place.can_run(&["cc", "--version"]) {
        return;
    }
    place.write("Makefile", "prog: main.c h.h\n\tcc -o $@ main.c\ntest: prog\n\t./prog\n");
    place.write("h.h", "#define NUMBER 1\n");
    place.write(
        "main.c",
        "#include <stdio.h>\n#include \"h.h\"\nint main(void) { printf(\"%d\\n\", NUMBER); }\n",
    );
    place.prepare("touch -d '1 hour ago' Makefile h.h main.c");
    let test = "make test";
    recall(&place, test).expect_miss("cc -o prog main.c\n./prog\n1\n");
    recall(&place, test).expect_miss("./prog\n1\n");
    recall(&place, test).expect_hit("./prog\n1\n");
    place.prepare("touch h.h");
    recall(&place, test).expect_miss("cc -o prog main.c\n./prog\n1\n");
    recall(&place, test).expect_miss("./prog\n1\n");
    recall(&place, test).expect_hit("./prog\n1\n");
    place.write("h.h", "#define NUMBER 2\n");
    recall(&place, test).expect_miss("cc -o prog main.c\n./prog\n2\n");
    fs::remove_file(place.at("prog")).unwrap();
    recall(&place, test);
    fs::remove_file(place.at("prog")).unwrap();
    recall(&place, test).expect_hit("cc -o prog main.c\n./prog\n2\n");
    assert_eq!(place.prepare("./prog"), "2\n");
}

#[test]
fn compiler_is_recalled_by_content_and_sees_a_header_that_comes_first() {
    let place = Place::new();
    if !place.can_run(&["cc", "--version"]) {
        return;
    }
    for directory in ["first", "second"] {
        fs::create_dir(place.at(directory)).unwrap();
    }
    place.write("second/h.h", "#define NUMBER 1\n");
    place.write("main.c", "#include <h.h>\nint main(void) { return NUMBER; }\n");
    let script = "cc -Ifirst -Isecond -o prog main.c";
    recall(&place, script).expect_miss("");
    recall(&place, script);
    recall(&place, script).expect_hit("");
    // The same bytes at another time.
    place.prepare("touch second/h.h");
    recall(&place, script).expect_hit("");
    place.write("first/h.h", "#define NUMBER 2\n");
    recall(&place, script).expect_miss("");
    let status = place.program(place.at("prog")).status().unwrap();
    assert_eq!(status.code(), Some(2));
}

#[test]
fn python_and_git_are_recalled() {
    let place = Place::new();
    place.write("package/one.py", "x = 1\n");
    let compile =
        "PYTHONHASHSEED=0 /usr/bin/python3 -m compileall -q package && ls package/__pycache__ | wc -l";
    if place.can_run(&["/usr/bin/python3", "--version"]) {
        let options = &["--allow-random"];
        recall_with(&place, options, compile).expect_miss("1\n");
        recall_with(&place, options, compile);
        recall_with(&place, options, compile).expect_hit("1\n");
        place.write("package/two.py", "y = 2\n");
        recall_with(&place, options, compile).expect_miss("2\n");
    }
    place.prepare("git init -q; git add package/*.py; git commit -qm one");
    let archive = "git archive HEAD | tar -t | wc -l";
    let first = recall(&place, archive);
    assert!(first.from.is_none(), "{first:?}");
    recall(&place, archive).expect_hit(&first.run.stdout);
    place.prepare("echo z > package/z; git add package/z; git commit -qm two");
    let other = recall(&place, archive);
    assert!(other.from.is_none() && other.run.stdout != first.run.stdout, "{other:?}");
}

#[test]
fn program_that_changes_runs_again() {
    let place = Place::new();
    place.write("tool", "#!/bin/sh\necho one\n");
    place.prepare("chmod 755 tool");
    recall(&place, "./tool").expect_miss("one\n");
    recall(&place, "./tool").expect_hit("one\n");
    place.write("tool", "#!/bin/sh\necho two\n");
    recall(&place, "./tool").expect_miss("two\n");
    let mut command = recalling(&place, &[], "./tool");
    command.env("PATH", format!("{}:/usr/bin:/bin", place.work.display()));
    finish(command).expect_miss("two\n");
}

#[test]
fn directory_is_seen_with_the_types_of_its_entries() {
    let place = Place::new();
    fs::create_dir_all(place.at("d/full")).unwrap();
    fs::write(place.at("d/full/f"), "").unwrap();
    fs::write(place.at("d/entry"), "").unwrap();
    let find = "/usr/bin/find d -type f | sort";
    recall(&place, find).expect_miss("d/entry\nd/full/f\n");
    recall(&place, find).expect_hit("d/entry\nd/full/f\n");
    fs::remove_file(place.at("d/entry")).unwrap();
    fs::create_dir(place.at("d/entry")).unwrap();
    recall(&place, find).expect_miss("d/full/f\n");
    // A removal that fails has seen that the directory has entries.
    let remove = "rmdir d/full 2> /dev/null || echo full";
    recall(&place, remove).expect_miss("full\n");
    recall(&place, remove).expect_hit("full\n");
    fs::remove_file(place.at("d/full/f")).unwrap();
    recall(&place, remove).expect_miss("");
    assert!(!place.at("d/full").exists());
}

#[test]
fn directory_that_is_only_entered_is_not_listed() {
    let place = Place::new();
    fs::create_dir(place.at("d")).unwrap();
    let script = "cd d && echo inside";
    recall(&place, script).expect_miss("inside\n");
    fs::write(place.at("d/new"), "").unwrap();
    recall(&place, script).expect_hit("inside\n");
}

#[test]
fn interpreter_and_shared_library_count() {
    let place = Place::new();
    let interpreter = place.at("interpreter");
    copy_program("/bin/sh", &interpreter);
    place.write("script", format!("#!{}\necho ran\n", interpreter.display()));
    place.prepare("chmod 755 script");
    recall(&place, "./script").expect_miss("ran\n");
    recall(&place, "./script").expect_hit("ran\n");
    // A program that does nothing.
    copy_program("/bin/true", &interpreter);
    recall(&place, "./script").expect_miss("");

    if !place.can_run(&["cc", "--version"]) {
        return;
    }
    place.write("use.c", "int number(void);\nint main(void) { return number(); }\n");
    let make = |number: u32| {
        place.write("lib.c", format!("int number(void) {{ return {number}; }}\n"));
        place.prepare("cc -shared -fPIC -o libnumber.so lib.c");
    };
    make(1);
    place.prepare("cc -o use use.c -L. -lnumber -Wl,-rpath,'$ORIGIN'");
    let script = "./use; echo $?";
    recall(&place, script).expect_miss("1\n");
    recall(&place, script).expect_hit("1\n");
    make(2);
    recall(&place, script).expect_miss("2\n");
}

#[test]
fn mount_over_an_input_counts() {
    let place = Place::new();
    if !needs_root("a mount") {
        return;
    }
    place.write("d/in", "below\n");
    recall(&place, "cat d/in; ls d").expect_miss("below\nin\n");
    recall(&place, "cat d/in; ls d").expect_hit("below\nin\n");
    let Some(mounted) = SmallFilesystem::at(&place.at("d"), "size=1m") else { return };
    place.write("d/in", "above\n");
    recall(&place, "cat d/in; ls d").expect_miss("above\nin\n");
    drop(mounted);
    recall(&place, "cat d/in; ls d").expect_hit("below\nin\n");
}

#[test]
fn bash_asks_for_a_terminal_and_is_recalled() {
    let place = Place::new();
    if !place.can_run(&["bash", "--version"]) {
        return;
    }
    let script = "bash -c 'echo $((1 + 1))'";
    recall(&place, script).expect_miss("2\n");
    recall(&place, script).expect_hit("2\n");
    let used = recall(&place, "bash -c 'read -t 0 x < /dev/tty; echo read'");
    assert!(used.run.stderr.contains("it used /dev/tty"), "{used:?}");
}
