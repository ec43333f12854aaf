//! Dead letters that are carried to another database.

use super::process::Folder;
use super::triage::with_letters;

/// Open there, it would be sent again with all the others.
#[test]
fn what_was_resolved_before_it_was_exported_is_not_open_where_it_is_imported() {
    let folder = with_letters(3);
    folder.run(&["dlq", "discard", "2", "--reason", "a test", "--yes"]).assert(0, "1 done");
    let all = folder.run(&["dlq", "export", "--status", "all"]).assert(0, "3 dead letters were written").out;
    let other = Folder::new();
    other.run_with(&["dlq", "import", "-", "--dry-run"], &all).assert(0, "would store 2 dead letters");
    other.run_with(&["dlq", "import", "-"], &all).assert(0, "1 were replayed or discarded");
    let open = other.run(&["dlq", "export"]).assert(0, "2 dead letters were written").out;
    assert_eq!(open, folder.run(&["dlq", "export"]).assert(0, "").out);
    // Who wants it all the same says so.
    let again = all.replace(",\"status\":\"discarded\"", "");
    other.run_with(&["dlq", "import", "-"], &again).assert(0, "3 dead letters were read");
    other.run(&["dlq", "export"]).assert(0, "3 dead letters were written");
}
