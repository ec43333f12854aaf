//! Corrections as their standards have them, and payloads that they do not fit.

use super::*;

fn patched(patch: &str, payload: &str) -> Result<String, String> {
    let correction = Correction::patch(patch).map_err(|misfit| misfit.0)?;
    applied(&correction, payload)
}

fn merged(patch: &str, payload: &str) -> Result<String, String> {
    applied(&Correction::merge(patch).map_err(|misfit| misfit.0)?, payload)
}

fn applied(correction: &Correction, payload: &str) -> Result<String, String> {
    let after = correction.apply(payload.as_bytes()).map_err(|misfit| misfit.0)?;
    Ok(String::from_utf8(after).unwrap())
}

#[test]
fn what_is_not_named_stays_byte_for_byte() {
    let payload = r#"{"z": 1.10, "a":{"deep" : [ 12345678901234567890.123456789 ]},"currency":"USD"}"#;
    let after = merged(r#"{"currency":"EUR"}"#, payload).unwrap();
    assert_eq!(after, r#"{"z":1.10,"a":{"deep" : [ 12345678901234567890.123456789 ]},"currency":"EUR"}"#);
}

/// The examples of RFC 7396, but for those that change nothing.
#[test]
fn a_merge_patch_does_what_its_standard_says() {
    for (payload, patch, after) in [
        (r#"{"a":"b"}"#, r#"{"a":"c"}"#, r#"{"a":"c"}"#),
        (r#"{"a":"b"}"#, r#"{"b":"c"}"#, r#"{"a":"b","b":"c"}"#),
        (r#"{"a":"b"}"#, r#"{"a":null}"#, "{}"),
        (r#"{"a":"b","b":"c"}"#, r#"{"a":null}"#, r#"{"b":"c"}"#),
        (r#"{"a":["b"]}"#, r#"{"a":"c"}"#, r#"{"a":"c"}"#),
        (r#"{"a":"c"}"#, r#"{"a":["b"]}"#, r#"{"a":["b"]}"#),
        (r#"{"a":{"b":"c"}}"#, r#"{"a":{"b":"d","c":null}}"#, r#"{"a":{"b":"d"}}"#),
        (r#"{"a":[{"b":"c"}]}"#, r#"{"a":[1]}"#, r#"{"a":[1]}"#),
        (r#"["a","b"]"#, r#"["c","d"]"#, r#"["c","d"]"#),
        (r#"{"a":"foo"}"#, "null", "null"),
        (r#"{"a":"foo"}"#, r#""bar""#, r#""bar""#),
        ("[1,2]", r#"{"a":"b","c":null}"#, r#"{"a":"b"}"#),
        ("{}", r#"{"a":{"bb":{"ccc":null}}}"#, r#"{"a":{"bb":{}}}"#),
    ] {
        assert_eq!(merged(patch, payload).as_deref(), Ok(after), "{patch} on {payload}");
    }
}

/// Most of the examples of RFC 6902, appendix A.
#[test]
fn a_json_patch_does_what_its_standard_says() {
    for (payload, step, after) in [
        (r#"{"foo":"bar"}"#, r#"{"op":"add","path":"/baz","value":"qux"}"#, r#"{"foo":"bar","baz":"qux"}"#),
        (
            r#"{"foo":["bar","baz"]}"#,
            r#"{"op":"add","path":"/foo/1","value":"qux"}"#,
            r#"{"foo":["bar","qux","baz"]}"#,
        ),
        (r#"{"foo":["bar"]}"#, r#"{"op":"add","path":"/foo/-","value":["a"]}"#, r#"{"foo":["bar",["a"]]}"#),
        (r#"{"baz":"qux","foo":"bar"}"#, r#"{"op":"remove","path":"/baz"}"#, r#"{"foo":"bar"}"#),
        (r#"{"foo":["bar","qux","baz"]}"#, r#"{"op":"remove","path":"/foo/1"}"#, r#"{"foo":["bar","baz"]}"#),
        (
            r#"{"baz":"qux","foo":"bar"}"#,
            r#"{"op":"replace","path":"/baz","value":"boo","more":1}"#,
            r#"{"baz":"boo","foo":"bar"}"#,
        ),
        (
            r#"{"foo":{"bar":"baz","waldo":"fred"},"qux":{"corge":"grault"}}"#,
            r#"{"op":"move","from":"/foo/waldo","path":"/qux/thud"}"#,
            r#"{"foo":{"bar":"baz"},"qux":{"corge":"grault","thud":"fred"}}"#,
        ),
        (
            r#"{"foo":["all","grass","cows","eat"]}"#,
            r#"{"op":"move","from":"/foo/1","path":"/foo/3"}"#,
            r#"{"foo":["all","cows","eat","grass"]}"#,
        ),
        (r#"{"a":[1]}"#, r#"{"op":"copy","from":"/a","path":"/b"}"#, r#"{"a":[1],"b":[1]}"#),
        (r#"{"a/b":1,"m~n":2}"#, r#"{"op":"replace","path":"/m~0n","value":3}"#, r#"{"a/b":1,"m~n":3}"#),
        (r#"{"a/b":1}"#, r#"{"op":"replace","path":"/a~1b","value":null}"#, r#"{"a/b":null}"#),
        ("1", r#"{"op":"replace","path":"","value":2}"#, "2"),
    ] {
        assert_eq!(patched(&format!("[{step}]"), payload).as_deref(), Ok(after), "{step} on {payload}");
    }
}

#[test]
fn a_payload_that_does_not_fit_is_named_by_the_step_and_not_by_what_it_says() {
    let secret = r#"{"card":"4111","list":[1]}"#;
    for (step, why) in [
        (r#"{"op":"test","path":"/card","value":"none"}"#, "step 1 (test /card): something else is there"),
        (
            r#"{"op":"replace","path":"/cart","value":1}"#,
            "step 1 (replace /cart): there is nothing at this place",
        ),
        (r#"{"op":"remove","path":"/list/1"}"#, "there is nothing at this place"),
        (r#"{"op":"remove","path":""}"#, "there is nothing at this place"),
        (r#"{"op":"add","path":"/list/2","value":1}"#, "there is no such place"),
        (r#"{"op":"add","path":"/list/01","value":1}"#, "there is no such place"),
        (r#"{"op":"add","path":"/card/x","value":1}"#, "there is no such place"),
        (r#"{"op":"move","from":"/list","path":"/list/0"}"#, "it cannot be moved into itself"),
        (r#"{"op":"test","path":"/list","value":[1.0]}"#, "the correction changes nothing in it"),
    ] {
        let told = patched(&format!("[{step}]"), secret).unwrap_err();
        assert!(told.contains(why) && !told.contains("4111"), "{step}: {told}");
    }
    assert_eq!(merged("{\"a\":1}", "{\"a\":"), Err("its payload is not JSON".to_owned()));
    assert_eq!(merged("{\"a\":1}", "{ \"a\": 1.0 }"), Err("the correction changes nothing in it".to_owned()));
    let erased = crate::envelope::erased_note(Payload::empty_object().hash());
    assert_eq!(merged("{\"a\":1}", &erased), Err("its payload was erased".to_owned()));
}

#[test]
fn what_is_no_correction_is_refused() {
    for (patch, why) in [
        ("[]", "no step"),
        ("{}", "cannot be read"),
        (r#"[{"op":"add","path":"/a"}]"#, "missing field `value`"),
        (r#"[{"op":"explode","path":"/a"}]"#, "unknown variant"),
        (r#"[{"op":"remove","path":"a"}]"#, "no JSON pointer"),
        (r#"[{"op":"remove","path":"/~2"}]"#, "no JSON pointer"),
        (
            r#"[{"op":"add","path":"/a","value":12345678901234567890.12}]"#,
            "more digits than are kept exactly",
        ),
    ] {
        let told = patched(patch, "{}").unwrap_err();
        assert!(told.contains(why), "{patch}: {told}");
    }
}

#[test]
fn copies_of_copies_come_to_an_end() {
    let double = r#"{"op":"copy","from":"","path":"/a"},{"op":"copy","from":"","path":"/b"}"#;
    let steps = vec![double; 40].join(",");
    assert!(patched(&format!("[{steps}]"), "{}").unwrap_err().contains("larger than any broker takes"));
}

#[test]
fn a_correction_is_read_back_as_it_was_written() {
    let patch = Correction::patch(r#"[{"op":"move","from":"/a~1b","path":"/c"}]"#).unwrap();
    for correction in [patch, Correction::merge("{\"a\":null}").unwrap()] {
        let written = serde_json::to_value(&correction).unwrap();
        assert_eq!(serde_json::from_value::<Correction>(written).unwrap(), correction);
    }
}

#[test]
fn payloads_in_any_state_are_corrected_or_refused() {
    let correction =
        Correction::patch(r#"[{"op":"add","path":"/a/-","value":1},{"op":"remove","path":"/b"}]"#).unwrap();
    let mut payload = r#"{"a":[{"x":"ä"}],"b":{"c":[1,2.50,null]}}"#.as_bytes().to_vec();
    for at in 0..payload.len() {
        for byte in [0, b'"', b'{', b'}', b'\\', 0xff] {
            let before = std::mem::replace(&mut payload[at], byte);
            if let Ok(after) = correction.apply(&payload) {
                serde_json::from_slice::<serde::de::IgnoredAny>(&after).unwrap();
            }
            payload[at] = before;
        }
    }
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    assert!(merged("{\"a\":1}", &format!("{{\"deep\":{deep}}}")).is_ok());
}
