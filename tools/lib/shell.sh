# What tools/check and tools/demo have in common; read with `.` from the top of the tree.

say() { printf '%s\n' "$*"; }
section() { printf '\n==== %s\n' "$*"; }
n_jobs() { nproc 2> /dev/null || echo 2; }

# Is it here? "cmd:NAME" or "cmd:NAME|OTHER", "pc:MODULE" (pkg-config), "lib:FILE" (a shared library), "file:GLOB".
here() {
  case $1 in
    cmd:*\|*) here "${1%|*}" || here "cmd:${1##*|}" ;;
    cmd:*) command -v "${1#*:}" > /dev/null ;;
    pc:*) pkg-config --exists "${1#*:}" 2> /dev/null ;;
    lib:*) { ldconfig -p || /sbin/ldconfig -p; } 2> /dev/null | grep -q "${1#*:}" ;;
    file:*) compgen -G "${1#*:}" > /dev/null ;;
  esac
}

# missing THING=PACKAGE...: prints the Debian packages of what is not here.
missing() {
  local pair
  for pair; do here "${pair%%=*}" || printf '%s ' "${pair#*=}"; done
}

# Installs Debian packages where this user may; says nothing of success: ask `missing` again.
install_packages() {
  local root=() package
  command -v apt-get > /dev/null || return 1
  if [ "$(id -u)" != 0 ]; then
    sudo -n true 2> /dev/null || return 1
    root=(sudo -n)
  fi
  export DEBIAN_FRONTEND=noninteractive
  say "installing: $*"
  "${root[@]}" apt-get update -q > /dev/null < /dev/null
  "${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "$@" \
    > /dev/null < /dev/null && return 0
  for package; do # one that cannot be had must not keep the others away
    "${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "$package" \
      > /dev/null < /dev/null || say "could not install $package"
  done
}

# What every build needs, and what it is better with.
BUILD_NEEDS=(cmd:gcc=gcc file:/usr/include/stdio.h=libc6-dev cmd:cmake=cmake 'cmd:ninja|make=ninja-build'
  cmd:pkg-config=pkg-config
  pc:yaml-0.1=libyaml-dev pc:jansson=libjansson-dev)
BUILD_LIKES=(lib:libopenblas.so.0=libopenblas-dev pc:hwloc=libhwloc-dev)

# require "${NEEDS[@]}" -- "${LIKES[@]}": ends with 2 when something needed is neither here nor installable.
require() {
  local needs=() likes=() packages
  while [ $# -gt 0 ] && [ "$1" != -- ]; do needs+=("$1") && shift; done
  shift
  likes=("$@")
  read -ra packages <<< "$(missing "${needs[@]}" "${likes[@]}")"
  [ ${#packages[@]} = 0 ] && return 0
  install_packages "${packages[@]}"
  packages=$(missing "${needs[@]}")
  if [ -n "$packages" ]; then
    say "missing, and not to be installed from here. On Debian 12, as root:"
    say "  apt-get update && apt-get install -y $packages"
    exit 2
  fi
}

# configure DIR ARGUMENTS...: with Ninja where it is here, else make; what an earlier configuration chose stays.
configure() {
  local directory=$1 maker=()
  shift
  if [ ! -f "$directory/CMakeCache.txt" ] && command -v ninja > /dev/null; then maker=(-G Ninja); fi
  mkdir -p "$directory"
  cmake -S . -B "$directory" "${maker[@]}" "$@" > "$directory/configure.log" 2>&1 ||
    { cat "$directory/configure.log" && return 1; }
}

# build DIR [TARGET...]: quiet when all is well.
build() {
  local directory=$1
  shift
  cmake --build "$directory" --parallel "$(n_jobs)" ${1:+--target "$@"} > "$directory/build.log" 2>&1 ||
    { tail -n 60 "$directory/build.log" && return 1; }
}
