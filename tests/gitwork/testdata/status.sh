# Counts which tracked files git reads: in the very first command on a fresh
# workspace, then with two entries made stale, then again. Needs a profile that
# allows ptrace(2).
set -eu
traced() {
	echo "== $1"
	strace -f -qq -o /tmp/trace -e trace=open,openat,openat2,readlink,readlinkat git status --porcelain
	cat /tmp/trace
}
traced first
touch -d 2001-02-03 d000/s00/file-000001.txt d000/s00/file-000002.txt
traced stale
traced again
