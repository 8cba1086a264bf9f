#!/usr/bin/env bash
# Builds packaging/Containerfile, and runs the demo in what it made: with docker, podman or buildah,
# whichever works here. Where Debian's image cannot be pulled, a fresh root made by debootstrap takes
# its place, for which this must be root. pip in that root trusts the certificates in PIP_CERT.
# The build compiles without a cache, about six minutes of CPU time. Options are passed on to it, such
# as buildah's --layers, with which a build that was cut off goes on at the step it was in:
#
#   packaging/check_container.sh [BUILD OPTION...]
set -euo pipefail
case ${1:-} in -h | --help) sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0"; exit ;; esac
cd "$(dirname "$0")/.."
image=debian:12-slim name=tokenyard-demo

if docker info >/dev/null 2>&1; then
  tool=docker
elif command -v podman >/dev/null && podman info >/dev/null 2>&1; then
  tool=podman
elif command -v buildah >/dev/null; then
  tool=buildah
  export BUILDAH_ISOLATION=chroot STORAGE_DRIVER=${STORAGE_DRIVER:-vfs}
else
  echo "No container tool works here; please run: sudo apt-get install -y buildah debootstrap" >&2
  exit 1
fi
echo "Building with $tool"

have_image() {
  case $tool in
    buildah) buildah inspect --type image "$image" >/dev/null 2>&1 || buildah pull -q "$image" >/dev/null 2>&1 ;;
    *) $tool image inspect "$image" >/dev/null 2>&1 || $tool pull -q "$image" >/dev/null 2>&1 ;;
  esac
}
if ! have_image; then
  root=build/debian
  echo "$image cannot be pulled: making it by debootstrap in $root"
  if ! [ -e $root/etc/debian_version ] && ! command -v debootstrap >/dev/null; then
    echo "debootstrap is missing; please run: sudo apt-get install -y debootstrap" >&2
    exit 1
  fi
  [ -e $root/etc/debian_version ] ||
    debootstrap --variant=minbase bookworm $root ${DEBIAN_MIRROR:-} >build/debootstrap.log
  certificates=${PIP_CERT:-${SSL_CERT_FILE:-}}
  if [ -n "$certificates" ]; then
    mkdir -p $root/etc/ssl
    cp "$certificates" $root/etc/ssl/of_this_machine.crt
    printf '[global]\ncert = /etc/ssl/of_this_machine.crt\n' >$root/etc/pip.conf
  fi
  if [ $tool = buildah ]; then
    container=$(buildah from scratch)
    buildah add -q "$container" $root / >/dev/null
    buildah commit -q "$container" "$image" >/dev/null
    buildah rm "$container" >/dev/null
  else
    tar -C $root -c . | $tool import - "$image" >/dev/null
  fi
fi

case $tool in
  buildah)
    buildah build --pull-never "$@" -f packaging/Containerfile -t $name .
    container=$(buildah from --pull-never $name)
    trap 'buildah rm "$container" >/dev/null' EXIT
    # buildah runs commands, not entry points; the demo needs no option.
    buildah run "$container" -- /opt/tokenyard/bin/python examples/moe_layer.py --ranks 4
    ;;
  *)
    $tool build "$@" -f packaging/Containerfile -t $name .
    $tool run --rm --shm-size=2g $name --ranks 4
    ;;
esac
echo "The container's demo ran."
