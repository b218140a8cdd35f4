# SPDX-License-Identifier: Apache-2.0
"""Real texts for measurements: files of Debian packages, fetched with apt-get."""

import gzip
import hashlib
import subprocess

POLICY = ("debian-policy", "usr/share/doc/debian-policy/policy.txt.gz")
FAQ = ("debian-faq", "usr/share/doc/debian/FAQ/debian-faq.en.txt.gz")


def fetch_text(work, source=POLICY):
    """(path, where it comes from) of the package's file, unpacked into the folder `work`."""
    package_name, member = source
    text = work / member.rsplit("/", 1)[1].removesuffix(".gz")
    work.mkdir(parents=True, exist_ok=True)
    if not list(work.glob(f"{package_name}_*.deb")):
        subprocess.run(["apt-get", "download", package_name], cwd=work, check=True, stdout=subprocess.DEVNULL)
    package = sorted(work.glob(f"{package_name}_*.deb"))[-1]
    version = subprocess.run(["dpkg-deb", "-f", package, "Version"], check=True, capture_output=True, text=True).stdout.strip()
    subprocess.run(["dpkg-deb", "-x", package, work / "root"], check=True)
    text.write_bytes(gzip.decompress((work / "root" / member).read_bytes()))
    return text, f"/{member} of the Debian package {package_name} {version}"


def digest(path):
    """The first half of the file's SHA-256 that reports show."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]
