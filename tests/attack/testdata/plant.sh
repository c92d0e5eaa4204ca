# Plants, in the workspace's git directory and tree, every way that is known to
# make git run a program of the Worker's. Each program leaves a mark in the
# directory $1, which exists on the host only.
set -eu
mark=$1
run() { printf 'touch %s/%s 2>/dev/null; ' "$mark" "$1"; }
program() { # NAME [TAIL]
	mkdir -p .evil
	printf '#!/bin/sh\n%s\n%s\n' "$(run "$1")" "${2-}" >".evil/$1"
	chmod 755 ".evil/$1"
	printf '%s/.evil/%s' "$PWD" "$1"
}

git config core.fsmonitor "$(run fsmonitor) false"
git config filter.evil.clean "$(run clean) cat"
git config filter.evil.smudge "$(run smudge) cat"
git config diff.evil.textconv "$(run textconv) cat"
git config diff.external "sh -c '$(run external)'"
git config core.sshCommand "sh -c '$(run ssh)'"
git config core.alternateRefsCommand "sh -c '$(run alternates)'"
git config core.pager "sh -c '$(run pager) cat'"
git config core.editor "sh -c '$(run editor)'"
git config gpg.program "sh -c '$(run gpg)'"
git config log.showSignature true
git config credential.helper "!$(run credential)"
git config uploadpack.packObjectsHook "sh -c '$(run packobjects)'"
git config alias.status "!$(run alias)"
git config include.path /etc/passwd-no-such
printf '*.md filter=evil diff=evil\n*.c filter=evil diff=evil\n' >.gitattributes
mkdir -p .git/hooks
for h in post-index-change pre-commit post-checkout reference-transaction post-rewrite fsmonitor-watchman pre-auto-gc; do
	printf '#!/bin/sh\n%s\nexit 0\n' "$(run "hook-$h")" >".git/hooks/$h"
	chmod 755 ".git/hooks/$h"
done
# Nested repositories, one of them bare and in plain sight (CVE-2022-24765).
mkdir nested && (cd nested && git init -q && git -c commit.gpgsign=false -c core.fsmonitor= commit -q --allow-empty -m n && git config core.fsmonitor "$(run nested-fsmonitor) false")
git -c core.fsmonitor= add -f nested 2>/dev/null || true
mkdir bare && (cd bare && mkdir objects refs && echo 'ref: refs/heads/main' >HEAD && printf '[core]\n\trepositoryformatversion = 0\n\tbare = false\n\tworktree = ..\n\tfsmonitor = "%s false"\n' "$(run bare-fsmonitor)" >config)
touch README.md src/main.c
echo changed >>README.md
