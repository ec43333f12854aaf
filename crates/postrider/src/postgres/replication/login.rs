//! Logging in: by nothing, a password in clear or as MD5, or SCRAM-SHA-256, as the server asks.

use fallible_iterator::FallibleIterator as _;
use postgres_protocol::authentication::md5_hash;
use postgres_protocol::authentication::sasl::{ChannelBinding, SCRAM_SHA_256, ScramSha256};
use postgres_protocol::message::backend::{AuthenticationSaslBody, Message};
use postgres_protocol::message::frontend;
use secrecy::ExposeSecret as _;

use super::Address;
use super::trouble::Trouble;
use super::wire::{Answer, Wire};

/// Opens a session that takes replication commands for one database.
pub(super) async fn log_in(wire: &mut Wire, who: &Address) -> Result<(), Trouble> {
    let parameters = [
        ("user", who.user.as_str()),
        ("database", who.database.as_str()),
        ("application_name", who.application_name.as_str()),
        ("client_encoding", "UTF8"),
        ("replication", "database"),
    ];
    wire.send(|out| frontend::startup_message(parameters, out)).await?;
    match message(wire).await? {
        Message::AuthenticationOk => return ready(wire).await,
        Message::AuthenticationCleartextPassword => {
            let password = password(who)?;
            wire.send(|out| frontend::password_message(password, out)).await?;
        }
        Message::AuthenticationMd5Password(body) => {
            let hash = md5_hash(who.user.as_bytes(), password(who)?, body.salt());
            wire.send(|out| frontend::password_message(hash.as_bytes(), out)).await?;
        }
        Message::AuthenticationSasl(body) => scram(wire, &body, password(who)?).await?,
        _ => {
            let text = "the server asks for a way to log in other than a password, SCRAM-SHA-256 or a certificate; give \
                        this user one of them in pg_hba.conf";
            return Err(Trouble::Login(text.to_owned()));
        }
    }
    match message(wire).await? {
        Message::AuthenticationOk => ready(wire).await,
        _ => Err(Trouble::unexpected("after the password")),
    }
}

/// SCRAM: neither side learns the other's secret, and each proves that it has its own.
async fn scram(wire: &mut Wire, body: &AuthenticationSaslBody, password: &[u8]) -> Result<(), Trouble> {
    let known = body.mechanisms().any(|name| Ok(name == SCRAM_SHA_256));
    if !known.map_err(|error| Trouble::unreadable(&error))? {
        return Err(Trouble::Login("the server offers no SCRAM-SHA-256".to_owned()));
    }
    let mut scram = ScramSha256::new(password, ChannelBinding::unsupported());
    wire.send(|out| frontend::sasl_initial_response(SCRAM_SHA_256, scram.message(), out)).await?;
    let Message::AuthenticationSaslContinue(body) = message(wire).await? else {
        return Err(Trouble::unexpected("while logging in"));
    };
    scram.update(body.data()).map_err(|error| Trouble::unreadable(&error))?;
    wire.send(|out| frontend::sasl_response(scram.message(), out)).await?;
    let Message::AuthenticationSaslFinal(body) = message(wire).await? else {
        return Err(Trouble::unexpected("while logging in"));
    };
    let unproven = "the server did not prove that it knows this user's password; it may not be the one that it claims to be";
    scram.finish(body.data()).map_err(|_| Trouble::Login(unproven.to_owned()))
}

/// Waits until commands are taken.
async fn ready(wire: &mut Wire) -> Result<(), Trouble> {
    loop {
        match message(wire).await? {
            Message::BackendKeyData(_) => {}
            Message::ReadyForQuery(_) => return Ok(()),
            _ => return Err(Trouble::unexpected("after logging in")),
        }
    }
}

async fn message(wire: &mut Wire) -> Result<Message, Trouble> {
    match wire.receive().await? {
        Answer::Message(message) => Ok(message),
        Answer::CopyBoth => Err(Trouble::unexpected("while logging in")),
    }
}

fn password(who: &Address) -> Result<&[u8], Trouble> {
    let missing =
        || Trouble::Login("the server asks for a password, and the database URL has none".to_owned());
    who.password.as_ref().map(|password| password.expose_secret().as_bytes()).ok_or_else(missing)
}
