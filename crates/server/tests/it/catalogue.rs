//! `postrider schema`: the catalogue of events.

use super::process::Folder;

#[test]
fn the_catalogue_refuses_what_breaks_readers() {
    let folder = Folder::new();
    std::fs::create_dir(folder.path().join("catalog")).unwrap();
    let event = |fields: &str| {
        format!(
            r#"{{"type": "a.b", "description": "It happened.", "schema": {{"type": "object", "properties": {fields}}}}}"#
        )
    };
    folder.write("catalog/a.b.json", &event(r#"{"id": {"type": "string"}}"#));
    folder.run(&["schema", "ls"]).assert(0, "new");
    folder
        .run(&["schema", "release", "--dry-run"])
        .assert(0, "would be released, 1 of them new; nothing was");
    folder.run(&["schema", "release"]).assert(0, "1 of them new");
    folder.run(&["schema", "check"]).assert(0, "nothing stands against it");
    folder.write("catalog/a.b.json", &event(r#"{"number": {"type": "integer"}}"#));
    folder.run(&["schema", "check"]).assert(3, "/id is gone");
    folder.write("catalog/a.b.json", &event(r#"{"id": {"type": "string"}, "email": {"type": "string"}}"#));
    folder.run(&["schema", "check"]).assert(3, "looks personal");
    folder.run(&["schema", "check", "a.b", "--data", r#"{"id": 7}"#]).assert(3, "/id is number");
    let document = folder.run(&["generate", "asyncapi"]).json();
    assert_eq!(document["channels"]["a.b"]["address"], "a.b");
}
