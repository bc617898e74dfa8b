//! Secrets: what is only read is withheld, and values in command lines are masked.

use std::path::Path;

use agent_snapshot::snapshot::{BlobOmitted, Digest, Present, Snapshot, State};
use walkdir::WalkDir;

use crate::support::{MECHANISMS, Place, User, assert_same, describe, scan};

/// The secret files of a home directory, and one of a repository.
const FILES: [&str; 16] = [
    ".ssh/id_ed25519",
    ".ssh/id_rsa",
    ".netrc",
    ".aws/credentials",
    ".config/gcloud/credentials.db",
    ".config/gcloud/legacy_credentials/me/adc.json",
    ".git-credentials",
    ".npmrc",
    ".pypirc",
    ".docker/config.json",
    ".config/gh/hosts.yml",
    ".kube/config",
    ".env",
    ".env.production",
    ".envrc",
    "server.pem",
];

/// Commands with one secret each in place of `VALUE`.
const COMMANDS: [&str; 14] = [
    "true --password VALUE",
    "true --token=VALUE",
    "true --api-key 'VALUE' next",
    "env GITHUB_TOKEN=VALUE true",
    "env DB_PASSWORD=\"VALUE\" true",
    "true -H 'Authorization: Bearer VALUE'",
    "true https://me:VALUE@example.org/x",
    "true https://VALUE@example.org/x",
    "true '{\"client_secret\": \"VALUE\"}'",
    "sh -c 'AWS_SECRET_ACCESS_KEY=VALUE true'",
    "sh -c 'export NPM_TOKEN=VALUE; true'",
    "bash -c 'true --passphrase=VALUE && true'",
    "sh -c \"sh -c 'true --db-password VALUE'\"",
    "true 'postgresql://u:VALUE@localhost/db'",
];

/// A secret that is found wherever it is.
fn secret(number: usize) -> String {
    format!("planted{number:02}secret")
}

/// What a secret file holds.
fn content(number: usize) -> String {
    format!("-----BEGIN PRIVATE KEY-----\n{}\n", secret(number))
}

/// Plants a secret in each of the files.
fn plant(place: &Place) {
    for (number, name) in FILES.iter().enumerate() {
        place.write(name, content(number));
    }
}

/// A script that reads all files and runs all commands.
fn script() -> String {
    let mut script = format!("cat {}", FILES.join(" "));
    for (number, command) in COMMANDS.iter().enumerate() {
        script.push_str(&format!("\n{}", command.replace("VALUE", &secret(FILES.len() + number))));
    }
    script
}

/// The secrets, and digests of them, that are in a file below `directory`.
fn found(directory: &Path) -> Vec<String> {
    let mut needles = Vec::new();
    for number in 0..FILES.len() + COMMANDS.len() {
        let digest = Digest::of(content(number).as_bytes()).to_string();
        needles.extend([secret(number), digest]);
    }
    let mut found = Vec::new();
    for entry in WalkDir::new(directory) {
        let entry = entry.unwrap();
        if entry.file_type().is_file() {
            let bytes = std::fs::read(entry.path()).unwrap();
            let holds = |needle: &&String| bytes.windows(needle.len()).any(|part| part == needle.as_bytes());
            found
                .extend(needles.iter().filter(holds).map(|needle| format!("{needle} in {:?}", entry.path())));
        }
    }
    found
}

fn before<'s>(place: &Place, snapshot: &'s Snapshot, name: &str) -> &'s Present {
    match &place.file(snapshot, name).before {
        State::Present(present) => present,
        other => panic!("{name}: {other:?}"),
    }
}

#[test]
fn nothing_tells_of_secrets_that_are_read_or_are_arguments() {
    for mechanism in MECHANISMS {
        for &user in User::all() {
            let place = Place::of(user);
            plant(&place);
            // While it runs, the journal has what a recovery would make a snapshot of.
            let copy = format!("{}; cp -r {} ../copy", script(), place.out.display());
            let options = ["--mechanism", mechanism, "--compression", "none", "--quiet", "--"];
            let output = place.record_with(&options, &copy);
            assert!(output.status.success(), "{output:?}");
            assert_eq!(found(&place.out), [""; 0], "{mechanism}");
            assert_eq!(found(&place.base().join("copy")), [""; 0], "{mechanism}");
            let snapshot = place.snapshot();
            for name in FILES {
                let before = before(&place, &snapshot, name);
                assert_eq!(before.blob_omitted, Some(BlobOmitted::Withheld), "{name}");
                assert_eq!((&before.digest, &before.blob), (&None, &None), "{name}");
            }
            assert!(snapshot.header().complete && snapshot.header().redacted);
            let said = place.verb("verify", &[]).expect(0).stdout;
            let count = FILES.len();
            assert!(said.contains(&format!("({count} by their metadata, since their content was")), "{said}");
            // Nobody knows what it was, but that somebody has written it since.
            place.prepare(&format!("printf %s '{}' > .netrc", content(3).replace('\n', "x")));
            let said = place.verb("verify", &[]).expect(1).stdout;
            assert!(
                said.starts_with("modified") && said.contains("/.netrc  its content was withheld"),
                "{said}"
            );
        }
    }
}

#[test]
fn library_has_no_secret_of_a_command_line() {
    let place = Place::new();
    plant(&place);
    let mut command = place.command();
    command.args(["run", "--keep", "all", "--compression", "none", "--", "sh", "-c", &script()]);
    assert!(command.output().unwrap().status.success());
    assert_eq!(found(&place.home), [""; 0]);
}

#[test]
fn secrets_that_the_command_changes_are_kept_for_undo() {
    let place = Place::new();
    plant(&place);
    let tree = describe(&scan(&place.work), |_| false);
    place.record("cat .env .npmrc .netrc .pypirc; echo x >> .env; rm .npmrc; mv .netrc elsewhere; chmod 600 .pypirc; echo y > .env.new");
    place.verb("restore", &["--before"]).expect(0);
    assert_same(&describe(&scan(&place.work), |_| false), &tree, "before");
    place.verb("restore", &[]).expect(0);
    assert_eq!(std::fs::read_to_string(place.at(".env")).unwrap(), format!("{}x\n", content(12)));
    assert_eq!(std::fs::read_to_string(place.at("elsewhere")).unwrap(), content(2));
    assert_eq!(std::fs::read_to_string(place.at(".env.new")).unwrap(), "y\n");
}

#[test]
fn only_a_private_key_makes_a_pem_file_a_secret() {
    let place = Place::new();
    place.write("server.pem", content(0));
    place.write("ca.pem", "-----BEGIN CERTIFICATE-----\n");
    place.write("id.pub", "ssh-ed25519 AAAA");
    let snapshot = place.record("cat server.pem ca.pem id.pub");
    assert_eq!(before(&place, &snapshot, "server.pem").blob_omitted, Some(BlobOmitted::Withheld));
    assert!(before(&place, &snapshot, "ca.pem").blob.is_some());
    assert!(before(&place, &snapshot, "id.pub").blob.is_some());
}

#[test]
fn git_names_no_blob_of_a_withheld_file() {
    let place = Place::new();
    place.write(".npmrc", "registry=x\n");
    place.write("plain", "x\n");
    place.prepare("git init -q; git add .; git commit -qm one");
    let snapshot = place.record("cat .npmrc plain");
    let oid = |name: &str| place.file(&snapshot, name).git.as_ref().unwrap().oid.clone();
    assert!(oid("plain").is_some());
    assert_eq!(oid(".npmrc"), None);
    assert_eq!(before(&place, &snapshot, ".npmrc").blob_omitted, Some(BlobOmitted::Withheld));
}

#[test]
fn no_redact_records_secrets_like_all_else() {
    let place = Place::new();
    plant(&place);
    let output = place.record_with(&["--no-redact", "--"], "cat .netrc; true --password hunter2");
    assert!(output.status.success(), "{output:?}");
    let snapshot = place.snapshot();
    assert_eq!(before(&place, &snapshot, ".netrc").digest, Some(Digest::of(content(2).as_bytes())));
    assert!(!snapshot.header().redacted);
    assert_eq!(snapshot.header().command[2], b"cat .netrc; true --password hunter2");
}

#[test]
fn tables_have_no_secret_of_a_recording_that_has_them_all() {
    let place = Place::new();
    plant(&place);
    let links = ["https://me:VALUE@example.org/x", "API_TOKEN=VALUE"];
    let count = FILES.len() + COMMANDS.len();
    let mut script = format!("{}\nchmod 600 {}", script(), FILES.join(" "));
    for (number, target) in links.iter().enumerate() {
        script.push_str(&format!(
            "\nln -s '{}' link{number}",
            target.replace("VALUE", &secret(count + number))
        ));
    }
    for name in &FILES[..8] {
        script.push_str(&format!("\necho x >> {name}"));
    }
    let output = place.record_with(&["--no-redact", "--"], &script);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(
        place.file(&place.snapshot(), "link1").after.present().unwrap().target.as_ref().unwrap().len(),
        25
    );
    let tables = place.base().join("tables");
    place.run(["export", "--tables", tables.to_str().unwrap(), place.out.to_str().unwrap()]).expect(0);
    let decoded = place.base().join("decoded");
    std::fs::create_dir(&decoded).unwrap();
    let (mut text, mut secrets) = (String::new(), Vec::new());
    for row in decode(&tables) {
        if row.contains("/work/.env\"") || row.contains("/.aws/credentials\"") {
            secrets.push(row.clone());
        }
        text.push_str(&row);
    }
    std::fs::write(decoded.join("rows"), &text).unwrap();
    assert_eq!(found(&tables), [""; 0]);
    assert_eq!(found(&decoded), [""; 0]);
    for number in 0..count + links.len() {
        assert!(!text.contains(&secret(number)), "{number}");
    }
    assert!(text.contains("link1") && text.contains("API_TOKEN=<REDACTED>"), "{text}");
    // Neither side of a changed secret has a digest.
    assert_eq!(secrets.len(), 2, "{secrets:?}");
    assert!(secrets.iter().all(|row| !row.contains("sha256:")), "{secrets:?}");
}

/// All rows of all tables, as text.
fn decode(tables: &Path) -> Vec<String> {
    use parquet::file::reader::{FileReader as _, SerializedFileReader};
    let files =
        WalkDir::new(tables).into_iter().map(Result::unwrap).filter(|entry| entry.file_type().is_file());
    let rows = files.flat_map(|entry| {
        let reader = SerializedFileReader::new(std::fs::File::open(entry.path()).unwrap()).unwrap();
        reader.get_row_iter(None).unwrap().map(|row| row.unwrap().to_string()).collect::<Vec<_>>()
    });
    rows.collect()
}

#[test]
fn configuration_adds_and_removes_secret_files() {
    let place = Place::new();
    plant(&place);
    place.write("vault/key", "v");
    let config = place.config.join("agent-snapshot");
    std::fs::create_dir(&config).unwrap();
    let configure = |text: &str| std::fs::write(config.join("config.toml"), text).unwrap();
    configure("[secrets]\nadd = [\"vault\"]\nremove = [\".netrc\"]\n");
    let snapshot = place.record("cat vault/key .netrc .npmrc");
    let omitted = |name: &str| before(&place, &snapshot, name).blob_omitted;
    assert_eq!(omitted("vault/key"), Some(BlobOmitted::Withheld));
    assert_eq!(omitted(".npmrc"), Some(BlobOmitted::Withheld));
    assert_eq!(omitted(".netrc"), None);
    let shown = place.verb("show", &["--long"]).expect(0).stdout;
    let secrets: Vec<_> = shown.lines().filter(|line| line.ends_with("  a secret, withheld")).collect();
    assert!(secrets.len() == 2 && secrets[0].contains(".npmrc"), "{shown}");
    let said = place.verb("check", &["--deny-read", "@secrets"]).expect(1).stdout;
    assert!(said.contains("vault/key") && said.contains(".npmrc") && !said.contains("/.netrc"), "{said}");

    std::fs::remove_dir_all(&place.out).unwrap();
    configure("[secrets]\nremove = [\"netrc\"]\n");
    let output = place.record_with(&[], "cat .netrc; touch made");
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{said}");
    assert!(said.contains("config.toml: [secrets] remove: \"netrc\" is none of .ssh/id_*, "), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    let snapshot = place.snapshot();
    assert_eq!(before(&place, &snapshot, ".netrc").blob_omitted, Some(BlobOmitted::Withheld));
}
