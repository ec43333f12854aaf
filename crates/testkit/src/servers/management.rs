//! What the tests ask of RabbitMQ's management API.

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use url::form_urlencoded::byte_serialize;

use super::http;

/// Creates a vhost in which `guest` may do everything.
pub(crate) async fn create_vhost(base: &str, name: &str) -> Result<()> {
    let name = encode(name);
    change("PUT", base, &format!("/api/vhosts/{name}"), Some(&json!({}))).await?;
    let everything = json!({"configure": ".*", "write": ".*", "read": ".*"});
    change("PUT", base, &format!("/api/permissions/{name}/guest"), Some(&everything)).await
}

/// Deletes a vhost with everything in it. One that does not exist is fine.
pub(crate) async fn delete_vhost(base: &str, name: &str) -> Result<()> {
    change("DELETE", base, &format!("/api/vhosts/{}", encode(name)), None).await
}

/// How many nodes of the cluster run, as this node sees it.
pub(crate) async fn running_nodes(base: &str) -> Result<usize> {
    let response = http::request("GET", base, "/api/nodes", None).await?;
    ensure!(response.status == 200, "the management API answered {}", response.status);
    let nodes: Value = serde_json::from_slice(&response.body)?;
    let nodes = nodes.as_array().context("the management API listed no nodes")?;
    Ok(nodes.iter().filter(|node| node["running"] == true).count())
}

async fn change(method: &str, base: &str, path: &str, body: Option<&Value>) -> Result<()> {
    let response = http::request(method, base, path, body).await?;
    match response.status {
        200..300 => Ok(()),
        404 if method == "DELETE" => Ok(()),
        status => bail!("{method} {path} was answered {status}: {}", String::from_utf8_lossy(&response.body)),
    }
}

/// Vhost names may hold slashes: the first one is called `/`.
fn encode(name: &str) -> String {
    byte_serialize(name.as_bytes()).collect()
}
