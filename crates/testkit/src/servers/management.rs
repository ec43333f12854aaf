//! What the tests ask of RabbitMQ's management API.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use postrider::topology::BrokerPolicy;
use serde_json::{Value, json};
use url::form_urlencoded::byte_serialize;

use super::http;
use super::wait::Patience;

/// How long a policy may take to be in force.
const LIMIT: Duration = Duration::from_secs(30);

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

/// Sets policies, and waits until every one of them is in force.
pub(crate) async fn set_policies(base: &str, vhost: &str, policies: &[BrokerPolicy]) -> Result<()> {
    let vhost = encode(vhost);
    for policy in policies {
        let body = json!({
            "pattern": policy.pattern,
            "apply-to": policy.applies_to.as_str(),
            "definition": policy.definition,
        });
        let name = encode(&policy.name);
        change("PUT", base, &format!("/api/policies/{vhost}/{name}"), Some(&body)).await?;
    }
    for policy in policies {
        let patience = Patience::new(format!("policy {}", policy.name), LIMIT);
        let path = format!("/api/{}/{vhost}", policy.applies_to.as_str());
        while !list(base, &path).await?.iter().any(|object| object["policy"] == policy.name.as_str()) {
            patience.pause().await?;
        }
    }
    Ok(())
}

/// The objects of a vhost: `exchanges`, `queues` or `bindings`, as the management API lists them.
pub(crate) async fn objects(base: &str, vhost: &str, what: &str) -> Result<Vec<Value>> {
    list(base, &format!("/api/{what}/{}", encode(vhost))).await
}

/// The first part of the server's version.
pub(crate) async fn major_version(base: &str) -> Result<u32> {
    let response = http::request("GET", base, "/api/overview", None).await?;
    let overview: Value = serde_json::from_slice(&response.body)?;
    let version = overview["rabbitmq_version"].as_str().context("the management API told no version")?;
    Ok(version.split('.').next().unwrap_or_default().parse()?)
}

async fn list(base: &str, path: &str) -> Result<Vec<Value>> {
    let response = http::request("GET", base, path, None).await?;
    ensure!(response.status == 200, "GET {path} was answered {}", response.status);
    Ok(serde_json::from_slice(&response.body)?)
}

/// How many nodes of the cluster run, as this node sees it.
pub(crate) async fn running_nodes(base: &str) -> Result<usize> {
    let response = http::request("GET", base, "/api/nodes", None).await?;
    ensure!(response.status == 200, "the management API answered {}", response.status);
    let nodes: Value = serde_json::from_slice(&response.body)?;
    let nodes = nodes.as_array().context("the management API listed no nodes")?;
    Ok(nodes.iter().filter(|node| node["running"] == true).count())
}

/// Any request; what is answered with a success is read as JSON, if it is any.
pub(crate) async fn ask(base: &str, method: &str, path: &str, body: Option<&Value>) -> Result<Value> {
    let response = http::request(method, base, path, body).await?;
    ensure!((200..300).contains(&response.status), "{method} {path} was answered {}", response.status);
    Ok(serde_json::from_slice(&response.body).unwrap_or_default())
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
