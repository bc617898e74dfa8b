//! Tokens that are known by their shape: each vendor's begin with a prefix of their own.
//!
//! Only such shapes are in the table as nothing else has; what is found by words around it is left to `words.rs`.

use std::ops::Range;

/// Which bytes follow the prefix.
#[derive(Debug, Clone, Copy)]
enum Class {
    /// Digits and lower-case letters up to `f`.
    Hex,
    /// Digits and upper-case letters.
    Upper,
    /// As [`Class::Upper`], and just as many as the table says.
    ExactUpper,
    /// Digits and letters.
    Alnum,
    /// As [`Class::Alnum`], and just as many as the table says.
    ExactAlnum,
    /// Those, `-` and `_`.
    Word,
    /// Those, and `.`, `=`, `/` and `+`.
    Long,
    /// As [`Class::Word`], with a part between `-` and `_` that has digits and letters, unlike a name of words.
    Mixed,
    /// As [`Class::Word`], in parts between dots, at least two: a JSON Web Token (RFC 7519).
    Jwt,
}

use Class::*;

/// Prefixes, what follows, and the least number of such bytes: facts that the vendors publish.
const TOKENS: [(&str, Class, usize); 95] = [
    ("A3T", ExactUpper, 17),
    ("ABIA", ExactUpper, 16),
    ("ACCA", ExactUpper, 16),
    ("AGE-SECRET-KEY-1", Upper, 40),
    ("AIza", Word, 35),
    ("AKCp", Alnum, 60),
    ("AKIA", ExactUpper, 16),
    ("ASIA", ExactUpper, 16),
    ("ATATT3", Long, 50),
    ("ATBB", Alnum, 32),
    ("ATCTT3", Long, 50),
    ("CCIPAT_", Word, 30),
    ("CFPAT-", Word, 40),
    ("CLOJARS_", Alnum, 50),
    ("EZAK", Alnum, 50),
    ("EZTK", Alnum, 50),
    ("FLWSECK", Word, 12),
    ("GOCSPX-", Word, 24),
    ("LTAI", ExactAlnum, 20),
    ("NRAK-", Upper, 27),
    ("PMAK-", Word, 50),
    ("SG.", Long, 60),
    ("bkua_", Hex, 40),
    ("cio", ExactAlnum, 32),
    ("dapi", Hex, 32),
    ("dckr_oat_", Word, 24),
    ("dckr_pat_", Word, 24),
    ("discord.com/api/webhooks/", Long, 40),
    ("doo_v1_", Hex, 64),
    ("dop_v1_", Hex, 64),
    ("dor_v1_", Hex, 64),
    ("dp.pt.", Alnum, 40),
    ("dp.st.", Long, 40),
    ("dt0c01.", Long, 60),
    ("duffel_live_", Word, 40),
    ("eyJ", Jwt, 30),
    ("figd_", Word, 30),
    ("fio-u-", Word, 60),
    ("fm1_", Long, 60),
    ("fm2_", Long, 60),
    ("gho_", Alnum, 30),
    ("ghp_", Alnum, 30),
    ("ghr_", Alnum, 30),
    ("ghs_", Alnum, 30),
    ("ghu_", Alnum, 30),
    ("github_pat_", Word, 40),
    ("glc_", Long, 40),
    ("glcbt-", Word, 20),
    ("gldt-", Word, 20),
    ("glpat-", Word, 20),
    ("glptt-", Word, 20),
    ("glrt-", Word, 20),
    ("glft-", Word, 20),
    ("glagent-", Word, 20),
    ("glsa_", Word, 30),
    ("glsoat-", Word, 20),
    ("gsk_", Alnum, 40),
    ("hf_", Alnum, 30),
    ("hooks.slack.com/services/", Long, 30),
    ("hvb.", Word, 24),
    ("hvs.", Word, 24),
    ("lin_api_", Alnum, 32),
    ("nfp_", Alnum, 30),
    ("npm_", Alnum, 30),
    ("ntn_", Alnum, 40),
    ("ops_eyJ", Long, 60),
    ("pplx-", Alnum, 40),
    ("pscale_oauth_", Long, 32),
    ("pscale_pw_", Long, 32),
    ("pscale_tkn_", Long, 32),
    ("pul-", Hex, 40),
    ("pypi-", Word, 60),
    ("r8_", Alnum, 30),
    ("rk_live_", Alnum, 10),
    ("rk_test_", Alnum, 10),
    ("rubygems_", Hex, 40),
    ("sbp_", Hex, 40),
    ("sgp_", Word, 40),
    ("shpat_", Hex, 32),
    ("shpca_", Hex, 32),
    ("shppa_", Hex, 32),
    ("shpss_", Hex, 32),
    ("sk-", Mixed, 20),
    ("sk_live_", Alnum, 10),
    ("sk_test_", Alnum, 10),
    ("sntrys_", Long, 40),
    ("sntryu_", Hex, 40),
    ("sq0atp-", Word, 22),
    ("sq0csp-", Word, 40),
    ("tskey-", Word, 20),
    ("tvly-", Word, 30),
    ("whsec_", Long, 24),
    ("xai-", Alnum, 60),
    ("xapp-", Word, 20),
    ("ya29.", Word, 20),
];
/// Slack's: `xox`, a letter, and `-`.
const SLACK: &[u8] = b"xox";
/// The fewest bytes of such a part of a token of [`Class::Mixed`].
const MIXED_PART: usize = 16;

impl Class {
    fn has(self, byte: u8) -> bool {
        match self {
            Hex => matches!(byte, b'0'..=b'9' | b'a'..=b'f'),
            Upper | ExactUpper => matches!(byte, b'0'..=b'9' | b'A'..=b'Z'),
            Alnum | ExactAlnum => byte.is_ascii_alphanumeric(),
            Word | Mixed => byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'),
            Jwt => Word.has(byte) || byte == b'.',
            Long => Word.has(byte) || matches!(byte, b'.' | b'=' | b'/' | b'+'),
        }
    }

    /// Whether these bytes may follow the prefix.
    fn takes(self, rest: &[u8], least: usize) -> bool {
        rest.len() >= least
            && match self {
                Mixed => rest.split(|byte| matches!(byte, b'-' | b'_')).any(is_mixed_part),
                Jwt => rest.iter().filter(|byte| **byte == b'.').count() >= 2,
                ExactUpper | ExactAlnum => rest.len() == least && rest.iter().any(u8::is_ascii_digit),
                _ => rest.iter().any(u8::is_ascii_digit),
            }
    }
}

fn is_mixed_part(part: &[u8]) -> bool {
    part.len() >= MIXED_PART
        && part.iter().any(u8::is_ascii_digit)
        && part.iter().any(u8::is_ascii_alphabetic)
}

/// No token is shorter.
const SHORTEST: usize = 15;

/// Where the tokens are in the table that begin with a byte.
const BY_FIRST: [(usize, usize); 256] = {
    let mut found = [(0, 0); 256];
    let mut at = 0;
    while at < TOKENS.len() {
        let first = TOKENS[at].0.as_bytes()[0] as usize;
        let (start, end) = found[first];
        assert!(end == 0 || end == at, "the table is in groups of one first byte");
        found[first] = (if end == 0 { at } else { start }, at + 1);
        at += 1;
    }
    found
};

/// Where the tokens in a text are, in order.
pub fn tokens_in(text: &[u8]) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    let mut at = 0;
    while at + SHORTEST <= text.len() {
        if !is_of_word(text[at]) {
            at += 1;
            continue;
        }
        let word = text[at..].iter().take_while(|byte| is_of_word(**byte)).count();
        // Most words are shorter than any token, and what follows them is no part of one.
        let goes_on = || text.get(at + word).is_some_and(|byte| Long.has(*byte));
        let may_be_one = (word >= SHORTEST || goes_on()) && BY_FIRST[usize::from(text[at])].1 > 0;
        match may_be_one.then(|| token_length(&text[at..])).flatten() {
            Some(length) => {
                found.push(at..at + length);
                at += length;
            }
            None => at += word,
        }
    }
    found
}

fn is_of_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

/// How long the token at the start of `text` is.
fn token_length(text: &[u8]) -> Option<usize> {
    let run = |class: Class, start: usize, least: usize| {
        let rest = &text[start..];
        let length = rest.iter().take_while(|byte| class.has(**byte)).count();
        // What goes on is something else, such as a name.
        let ends = rest.get(length).is_none_or(|byte| !is_of_word(*byte));
        (ends && class.takes(&rest[..length], least)).then_some(start + length)
    };
    if let [b'x', b'o', b'x', kind, b'-', ..] = text
        && kind.is_ascii_alphabetic()
    {
        return run(Word, SLACK.len() + 2, 10);
    }
    let (start, end) = BY_FIRST[usize::from(*text.first()?)];
    TOKENS[start..end]
        .iter()
        .filter(|(prefix, ..)| text.starts_with(prefix.as_bytes()))
        .find_map(|(prefix, class, least)| run(*class, prefix.len(), *least))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Vec<&str> {
        tokens_in(text.as_bytes()).into_iter().map(|range| &text[range]).collect()
    }

    #[test]
    fn each_prefix_is_found_with_what_follows() {
        let digits = "0a1b2c3d4e5f".repeat(8);
        for (prefix, class, least) in TOKENS {
            let rest = match class {
                Upper => digits.to_uppercase(),
                ExactUpper => digits[..least].to_uppercase(),
                ExactAlnum => digits[..least].to_owned(),
                Jwt => format!("{digits}.eyJ{digits}.{digits}"),
                _ => digits.clone(),
            };
            let token = format!("{prefix}{rest}");
            assert_eq!(found(&token), [&token], "{prefix}");
            assert_eq!(found(&format!("x='{token}' y")), [&token], "{prefix}");
            assert!(found(&format!("x{token}")).is_empty(), "{prefix}");
            assert!(found(&token[..prefix.len() + least - 1]).is_empty(), "{prefix}");
        }
        assert_eq!(found("a xoxb-123456789012-abcdef b"), ["xoxb-123456789012-abcdef"]);
    }

    #[test]
    fn words_are_no_tokens() {
        for text in [
            "task-0123456789abcdef0123456789",
            "sk-learn-pipelines-and-benchmarks-v2",
            "npm_config_registry npm_lifecycle_event",
            "xoxo-love dapi ASIA AKIA AKIAtoolowercase12345 hf_something",
            "eyJ eyJust.a.sentence SG.1 pypi-server glpat-",
            "disk-0123456789abcdef0123456789",
            "ASIAPACIFICREGIONDATASETS2024 hf_transfer_is_a_package_of_2024_and_more",
            "/usr/lib/gcc/x86_64-linux-gnu/12/cc1plus npm_config_registry_of_the_user_2",
            "0123456789abcdef0123456789abcdef01234567",
        ] {
            assert!(found(text).is_empty(), "{text}");
        }
    }
}
