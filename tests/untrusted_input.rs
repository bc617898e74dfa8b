//! Bytes from elsewhere: whatever they are, they are read or refused with an error, without a panic.
//!
//! The entries are those of the targets in `fuzz/`, which need a nightly compiler.

use proptest::collection::vec;
use proptest::prelude::*;

#[path = "../fuzz/entries.rs"]
mod entries;

/// A call with arguments that are small numbers, addresses of mapped bytes, or anything.
fn words() -> impl Strategy<Value = Vec<u8>> {
    let word = prop_oneof![0..64u64, 0x1000..0x1100u64, any::<u64>()];
    vec(word, 6..9).prop_map(|words| words.into_iter().flat_map(u64::to_ne_bytes).collect())
}

/// Bytes that begin as a program does.
fn program() -> impl Strategy<Value = Vec<u8>> {
    let start = prop_oneof![
        Just(b"#!".to_vec()),
        Just(b"\x7fELF\x01\x01".to_vec()),
        Just(b"\x7fELF\x02\x01".to_vec())
    ];
    // Offsets and sizes that lead into the file, as well as out of it.
    let rest = vec(prop_oneof![3 => 0..70u8, 1 => any::<u8>()], 0..400);
    (start, rest).prop_map(|(start, rest)| [start, rest].concat())
}

/// JSON of the shapes of a manifest, and of others.
fn json() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        Just("null".to_owned()),
        Just("1e999".to_owned()),
        any::<i64>().prop_map(|number| number.to_string()),
        "\"(/|\\$HOME|\\$XDG_CONFIG_HOME|\\.\\.|[a-z]|\\\\u0000|\\\\ud800){0,6}\"",
        Just("\"format_version\"".to_owned()),
    ];
    leaf.prop_recursive(4, 24, 6, |inner| {
        let pair = ("[a-z_]{0,14}", inner.clone()).prop_map(|(key, value)| format!("\"{key}\":{value}"));
        prop_oneof![
            vec(inner, 0..6).prop_map(|items| format!("[{}]", items.join(","))),
            vec(pair, 0..6).prop_map(|items| format!("{{{}}}", items.join(","))),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn any_syscall_arguments_are_decoded_or_refused(number: u8, words in words(), memory: Vec<u8>) {
        entries::call(&[&[number], words.as_slice(), &memory].concat());
    }

    #[test]
    fn any_program_has_an_interpreter_or_none(bytes in program()) {
        entries::program(&bytes);
    }

    #[test]
    fn any_ignore_list_is_accepted_or_refused(text in json(), noise: Vec<u8>) {
        entries::ignore(text.as_bytes());
        entries::ignore(&noise);
    }

    #[test]
    fn any_manifest_is_read_or_refused(text in json(), noise: Vec<u8>) {
        entries::manifest(text.as_bytes());
        for version in 1..3 {
            let start = format!("{{\"format_version\":{version},\"id\":\"x\"");
            entries::manifest(format!("{start},\"files\":{text}}}").as_bytes());
        }
        entries::manifest(&noise);
    }

    #[test]
    fn any_archive_is_read_or_refused(name in "[a-z./]{0,20}", kind: u8, noise: Vec<u8>) {
        entries::archive(&noise);
        for magic in [&[0x1f, 0x8b][..], &[0x28, 0xb5, 0x2f, 0xfd]] {
            entries::archive(&[magic, &noise].concat());
        }
        for name in [name.as_str(), "manifest.json"] {
            let mut header = tar::Header::new_gnu();
            header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
            header.set_entry_type(tar::EntryType::new(kind));
            header.set_size(noise.len() as u64);
            header.set_cksum();
            entries::archive(&[header.as_bytes(), noise.as_slice(), &[0; 2048]].concat());
        }
    }

    #[test]
    fn any_blobs_are_read_or_refused(noise: Vec<u8>) {
        entries::blobs(&[b"PAR1", noise.as_slice(), b"PAR1"].concat());
        entries::blobs(&noise);
    }
}
