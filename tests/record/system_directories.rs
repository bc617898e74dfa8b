//! Directories of which only what the command changes is recorded: `reads:` in the ignore list.

use std::fs;

use crate::support::{MECHANISMS, Place, needs_root};

#[test]
fn only_what_is_changed_is_recorded_and_can_be_undone() {
    for mechanism in MECHANISMS {
        let place = Place::new();
        place.prepare(
            "mkdir -p sys/bin sys/share/doc; for f in read gone moved kept; do echo $f > sys/bin/$f; done
            echo doc > sys/share/doc/x; ln -s bin/read sys/link; chmod 644 sys/bin/kept",
        );
        let before = place.prepare("find sys -printf '%p %m %l\\n' | sort; cat sys/bin/*");
        let rule = format!("reads:{}", place.at("sys").display());
        let script =
            "cat sys/bin/read sys/link; ls sys/bin; test -e sys/absent; rm sys/bin/gone; cat sys/bin/kept
            mv sys/bin/moved sys/bin/new; echo more >> sys/bin/kept; chmod 755 sys/bin/kept; cat sys/bin/kept
            mv sys/share sys/shared; mkdir sys/made; echo x > sys/made/x; : > /dev/null";
        let output = place.record_with(&["--ignore", &rule, "--mechanism", mechanism], script);
        assert!(output.status.success(), "{output:?}");
        let snapshot = place.snapshot();
        let recorded = place.recorded(&snapshot);
        let names: Vec<_> = recorded.iter().map(|line| line.split(' ').next().unwrap()).collect();
        for name in ["gone", "moved", "new", "kept"].map(|name| format!("sys/bin/{name}")) {
            assert!(names.contains(&name.as_str()), "{mechanism} {name}: {recorded:?}");
        }
        assert!(names.contains(&"sys/shared/doc/x") && names.contains(&"sys/made/x"), "{recorded:?}");
        for name in ["sys/bin/read", "sys/link", "sys/absent"] {
            assert!(!names.contains(&name), "{mechanism} {name}: {recorded:?}");
        }
        let kept = place.file(&snapshot, "sys/bin/kept");
        assert!(kept.operations.contains(agent_snapshot::snapshot::Operation::Read), "after the change");
        let suppressed = snapshot.header().suppressed.iter().find(|one| one.rule == rule).unwrap();
        assert!(suppressed.reads > 3 && suppressed.writes == 0, "{suppressed:?}");
        place.verb("restore", &["--before"]).expect(0);
        assert_eq!(place.prepare("find sys -printf '%p %m %l\\n' | sort; cat sys/bin/*"), before);
    }
}

#[test]
fn root_undoes_what_a_command_did_to_the_system() {
    if !needs_root("to mount something else on /usr/local") {
        return;
    }
    let place = Place::new();
    let script = r#"set -e; mount -t tmpfs none /usr/local; mkdir /usr/local/bin; cd "$1/work"
        printf '#!/bin/sh\necho tool' > /usr/local/bin/tool; chmod 755 /usr/local/bin/tool
        "$2" run sh -c 'rm /usr/local/bin/tool; mkdir -p /usr/local/lib/p; echo p > /usr/local/lib/p/x'
        test ! -e /usr/local/bin/tool; "$2" undo; /usr/local/bin/tool; ls /usr/local"#;
    let run = place.run_unshared(script).expect(0);
    assert!(run.stdout.ends_with("tool\nbin\n"), "{run:?}");
    // A list of before keeps its meaning, and the way to the other is told.
    let list = place.config.join("agent-snapshot/ignore.json");
    fs::write(&list, "[\"/usr\"]").unwrap();
    let script = r#"mount -t tmpfs none /usr/local; echo > /usr/local/x; cd "$1/work"
        "$2" run --report summary rm /usr/local/x"#;
    let run = place.run_unshared(script).expect(0);
    assert!(run.stderr.contains("changed but not recorded: /usr"), "{run:?}");
    assert!(run.stderr.contains("reads:/usr"), "{run:?}");
}
