# A Worker's day with git. Everything it prints goes to /scratch/out, which is
# handed back as a tar archive with the whole git directory and what the kernel
# tells about this process.
set -eu
exec 3>&1
mkdir /scratch/out
exec >/scratch/out/log 2>&1
set -x

git status --porcelain --ignored >/scratch/out/first-status
test ! -s /scratch/out/first-status
if [ "$(git rev-parse --is-shallow-repository)" = true ]; then
	# A remote snapshot is one commit without refs: what follows wants some more.
	git tag v1
	git update-ref refs/remotes/origin/topic HEAD
	git commit -q --allow-empty -m second
fi
git status
git log --stat
git diff --exit-code
git blame README.md
git show v1
git branch -a
git tag -n
git describe --tags --always

echo one >>README.md
git diff
git add -A
git commit -m 'one more line'
git branch side HEAD~1
git checkout side
echo two >two
git add two
git stash
git stash list
git stash pop
git commit -m 'another file'
echo three >three && git add three && git commit -m third
git rebase -
git log --graph --oneline --all
git checkout -b merged origin/topic
git merge --no-edit side || { git checkout --theirs . && git add -A && git commit --no-edit; }
git cherry-pick --allow-empty side || git cherry-pick --skip
git tag -a -m mine mine
git rm -q two && git commit -m 'remove a file' && git revert --no-edit HEAD
git mv README.md READ.me && git commit -m rename && git log --follow READ.me

git worktree add /scratch/tree side
(cd /scratch/tree && git status && echo four >four && git add four && git commit -m 'in a worktree')
git worktree list
git worktree remove --force /scratch/tree
git clone . /scratch/clone
(cd /scratch/clone && git log -1 && git fsck)

git repack -d
git gc --prune=now
git fsck --full --strict
git count-objects -v
git config --list --show-origin
git rev-parse --git-dir --show-toplevel --git-common-dir
git for-each-ref
git reflog --all
git status --porcelain

set +x
env >/scratch/out/env
cat /proc/self/environ /proc/1/environ >/scratch/out/environ 2>&1 || true
cat /proc/self/cmdline /proc/1/cmdline /proc/1/comm >/scratch/out/cmdline 2>&1 || true
ls -l /proc/self/fd /proc/1/fd /proc/self/cwd /proc/self/root /proc/1/cwd /proc/1/root /proc/1/exe >/scratch/out/links 2>&1 || true
cat /proc/self/cgroup >/scratch/out/cgroup
cat /proc/self/mountinfo >/scratch/out/mountinfo
exec >/dev/null 2>&1
tar -cf - -C /scratch out -C "$PWD" . >&3
