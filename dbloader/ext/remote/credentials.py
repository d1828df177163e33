"""Give obstore the credentials of a profile of the ``aws`` program, and renew them when they expire.

obstore itself finds credentials in the environment, in web identities and in a machine's role, but not in profiles.
"""

from __future__ import annotations

import configparser
import json
import os
import shlex
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from dbloader.errors import StoreAccessError

# If one of these environment variables is set, obstore finds credentials itself, or uses none.
_OTHER_SOURCES = (
    "AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_SKIP_SIGNATURE",
)  # fmt: skip
# Each value has three names: in obstore, in a profile's file, and in the output of a profile's program.
_KEYS = (
    ("access_key_id", "aws_access_key_id", "AccessKeyId"),
    ("secret_access_key", "aws_secret_access_key", "SecretAccessKey"),
    ("token", "aws_session_token", "SessionToken"),
)
# Credentials without an expiry are used for this time. Then the profile's file or program is read again, because
# programs for single sign-on rewrite the file.
_READ_AGAIN = timedelta(minutes=5)
_LONGEST_S = 60.0  # the longest time that a profile's program may run


class ProfileCredentials:
    """Gives obstore the credentials of a profile. obstore calls this object again when the credentials have expired.

    Args:
        profile: The name of the profile.
        settings: The settings of the profile.
    """

    def __init__(self, profile: str, settings: dict[str, str]) -> None:
        self._profile = profile
        self.config = {"region": settings["region"]} if "region" in settings else {}  # obstore reads this attribute

    def __call__(self) -> dict[str, Any]:
        """Return the present credentials in the form that obstore expects.

        Raises:
            StoreAccessError: The profile's program fails.
        """
        settings, until = _settings(self._profile), datetime.now(UTC) + _READ_AGAIN
        if "aws_access_key_id" in settings:
            return {**{name: settings.get(in_file) for name, in_file, _ in _KEYS}, "expires_at": until}
        export = f"aws configure export-credentials --format process --profile {shlex.quote(self._profile)}"
        program = settings.get("credential_process", export)
        try:
            run = subprocess.run(shlex.split(program), stdout=subprocess.PIPE, check=True, timeout=_LONGEST_S)
            answer = json.loads(run.stdout)
            expires = answer.get("Expiration")
            until = datetime.fromisoformat(expires) if expires else until
            return {**{name: answer.get(in_answer) for name, _, in_answer in _KEYS}, "expires_at": until}
        except (OSError, ValueError, AttributeError, subprocess.SubprocessError) as error:
            what = f"the profile {self._profile} (AWS_PROFILE) gives no credentials"
            raise StoreAccessError(f"{what}: {shlex.split(program)[0]} failed: {type(error).__name__}") from None


def profile_credentials() -> ProfileCredentials | None:
    """Return the credentials of AWS_PROFILE or the profile ``default``; None if obstore itself finds credentials."""
    if any(map(os.environ.get, _OTHER_SOURCES)):
        return None
    profile = os.environ.get("AWS_PROFILE", "default")
    settings = _settings(profile)
    if "AWS_PROFILE" in os.environ or {"aws_access_key_id", "credential_process", "sso_session"} & {*settings}:
        return ProfileCredentials(profile, settings)
    return None


def _settings(profile: str) -> dict[str, str]:
    found = configparser.RawConfigParser()
    files = {"AWS_CONFIG_FILE": "~/.aws/config", "AWS_SHARED_CREDENTIALS_FILE": "~/.aws/credentials"}
    found.read([Path(os.environ.get(name, usual)).expanduser() for name, usual in files.items()])
    sections = (name for name in (f"profile {profile}", profile) if found.has_section(name))
    return {key: value for name in sections for key, value in found[name].items()}
