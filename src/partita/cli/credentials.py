"""Commands on the credentials of a federation: folders to hand out, keys, and certificates."""

import datetime
from pathlib import Path
from typing import Annotated

import typer

__all__ = ["credentials"]

credentials = typer.Typer()
_Folder = Annotated[Path, typer.Argument(help="The federation's folder at the server.")]
_Name = Annotated[str, typer.Argument(help="The client.")]


@credentials.command("credentials")
def _issue(folder: _Folder) -> None:
    """Issue the clients' folders again after an edit of federation.toml; new clients get keys."""
    from partita.federation.credentials import issue_credentials
    from partita.io.private import close_to_others

    close_to_others()
    for path in issue_credentials(folder):
        typer.echo(path)


@credentials.command("hand-out")
def _hand_out(
    folder: _Folder,
    name: _Name,
    target: Annotated[Path, typer.Argument(help="A new folder, such as on a memory stick.")],
) -> None:
    """Move a client's folder to another place, with its private key, which is kept nowhere else."""
    from partita.federation.credentials import hand_out
    from partita.io.private import close_to_others

    close_to_others()
    typer.echo(hand_out(folder, name, target))


@credentials.command("key")
def _key(
    folder: Annotated[Path, typer.Argument(help="The client's own folder.")],
    name: Annotated[str, typer.Option(help="The client's name.")],
) -> None:
    """Make a client's key on its own machine; only the public key goes to the server."""
    from partita.federation.credentials import own_key
    from partita.io.private import close_to_others

    close_to_others()
    public, fingerprint = own_key(folder, name)
    typer.echo(f"Send {public} to the server's operator, and tell its fingerprint by voice: {fingerprint}")


@credentials.command("accept")
def _accept(
    folder: _Folder, name: _Name, key: Annotated[Path, typer.Argument(help="The public key that it has sent.")]
) -> None:
    """Know a client by the public key that it has sent."""
    from partita.federation.credentials import accept
    from partita.io.private import close_to_others

    close_to_others()
    fingerprint = accept(folder, name, key)
    typer.echo(f"{name} is known by this key. Compare its fingerprint with what you were told: {fingerprint}")
    typer.echo(_RESTART)


@credentials.command("revoke")
def _revoke(folder: _Folder, name: _Name) -> None:
    """Know a client's key no more, for good, such as when its machine is lost."""
    from partita.federation.credentials import revoke
    from partita.io.private import close_to_others

    close_to_others()
    revoke(folder, name)
    typer.echo(f"The key of {name} is revoked; `partita federation accept` takes another. {_RESTART}")


_RESTART = "A running server learns of it when it is stopped and resumed."


@credentials.command("certificates")
def _certificates(
    folder: _Folder,
    renew: Annotated[bool, typer.Option("--renew", help="Make a new certificate for the server.")] = False,
    renew_authority: Annotated[
        bool, typer.Option("--renew-authority", help="Make everything new, such as when the server's key is lost.")
    ] = False,
) -> None:
    """Show when certificates end, or renew them."""
    from partita.federation import certificates
    from partita.federation.config import host_of, load
    from partita.federation.credentials import issue_credentials
    from partita.io.private import close_to_others

    close_to_others()
    host = host_of(load(folder).server.address)
    if renew_authority:
        certificates.make_authority(folder, host)
        issue_credentials(folder)
        typer.echo("The authority and the server's key are new; clients that have the new folder refuse the old ones.")
    elif renew:
        certificates.renew(folder, host)
    today = datetime.datetime.now(datetime.UTC)
    for file, end in certificates.ends(folder).items():
        typer.echo(f"{file} ends on {end:%Y-%m-%d}, in {(end - today).days:,} days.")
    if renew or renew_authority:
        typer.echo(_RESTART)
