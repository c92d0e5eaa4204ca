# What a workspace holds, asked by git in a sandbox of its own in which the
# workspace is mounted read-only. Arguments: what is asked, the repository, the
# point's commit, and what the question wants besides. Standard input: objects that
# need not be told, one to a line as "known OID", or "collected OID" for a commit
# that the cache was given from a workspace; "files LIST" and "gone LIST", where it is
# known where alone the files can differ from the point's (NUL-terminated, base64).
#
# Git runs with a git directory of ours, so that no configuration, hook, attribute
# file, graft, replacement or alternate of the Worker's takes effect even in here.
# Only the Worker's refs are read through its own. The answer is a claim all the
# same: who looks reads it with that in mind.
#
# Exit codes: 3, something that git would wait for for ever, or no git directory;
# 4, there is nothing; 5, no such revision. Others are git's.
set -eu
ask=$1 repo=$2 point=$3
shift 3
export HOME=/tmp LC_ALL=C GIT_CONFIG_NOSYSTEM=1 GIT_CONFIG_GLOBAL=/dev/null GIT_ATTR_NOSYSTEM=1 \
	GIT_NO_REPLACE_OBJECTS=1 GIT_NO_LAZY_FETCH=1 GIT_OPTIONAL_LOCKS=0 GIT_TERMINAL_PROMPT=0 GIT_GRAFT_FILE=/dev/null
tmp=/scratch/.look own=/scratch/.look/git
mkdir -p $tmp $own/objects/info $own/objects/pack $own/refs
echo "ref: refs/heads/none" >$own/HEAD
version=0
if [ ${#point} -eq 64 ]; then version=1; fi
cat >$own/config <<END
[core]
	repositoryformatversion = $version
	bare = false
	checkStat = default
	trustctime = true
	fsmonitor = false
	untrackedCache = false
	hooksPath = /dev/null
	attributesFile = /dev/null
	excludesFile = /dev/null
	sparseCheckout = true
	quotePath = true
[advice]
	addEmbeddedRepo = false
[diff]
	external =
	ignoreSubmodules = dirty
	renameLimit = 1000
[pack]
	threads = 2
	windowMemory = 64m
END
if [ $version -eq 1 ]; then printf '[extensions]\n\tobjectformat = sha256\n' >>$own/config; fi
echo "/run/yoi/objects/$repo" >$own/objects/info/alternates

ours() { GIT_DIR=$own GIT_WORK_TREE=$PWD git "$@"; }
# With the Worker's objects too.
both() { GIT_DIR=$own GIT_WORK_TREE=$PWD GIT_ALTERNATE_OBJECT_DIRECTORIES=$PWD/.git/objects git "$@"; }
theirs() { git --git-dir="$PWD/.git" -c core.hooksPath=/dev/null -c core.fsmonitor=false "$@"; }

# special lists what is neither file, directory nor link, and refuses what git
# would open among it.
special() {
	find . -path ./.git -prune -o ! -type f ! -type d ! -type l -printf '%P\0' >$tmp/special
	if [ -s $tmp/special ]; then
		if grep -qzE '(^|/)\.git' $tmp/special || [ -n "$(find . -mindepth 2 -name .git -print -quit)" ]; then exit 3; fi
	fi
}

# base makes the index what it was before any Worker.
base() {
	if [ -f "/run/yoi/base/$repo/index" ]; then
		cp -p "/run/yoi/base/$repo/index" $own/index
		chmod 600 $own/index
	else
		ours read-tree "$point"
	fi
}

# without prints the names of the sorted list $1 that are not in $2, part of it.
without() { sort -z "$1" "$2" "$2" | uniq -zu; }

# few brings the index up to date where it is known where to look. What is unusual
# makes it fail.
few() {
	grep -q '^files ' $tmp/told || return 1
	sed -n 's/^files //p' $tmp/told | base64 -d >$tmp/few
	sed -n 's/^gone //p' $tmp/told | base64 -d >$tmp/gone
	if [ -s $tmp/gone ]; then
		GIT_DIR=$own GIT_WORK_TREE=$PWD GIT_LITERAL_PATHSPECS=1 xargs -0 -a $tmp/gone git ls-files -z -- >>$tmp/few || return 1
	fi
	sort -zu $tmp/few -o $tmp/few
	# Whether they are tracked, and so not ignored, is asked only of those that match.
	ours check-ignore --no-index -z --stdin <$tmp/few >$tmp/match || [ $? -eq 1 ] || return 1
	if [ -s $tmp/match ]; then
		ours check-ignore -z --stdin <$tmp/match >$tmp/ignored || [ $? -eq 1 ] || return 1
		without $tmp/few $tmp/ignored >$tmp/kept
		mv $tmp/kept $tmp/few
	fi
	ours update-index -z --add --remove --replace --stdin <$tmp/few >&2
}

# stage makes $tree of all files that are not ignored.
stage() {
	partial=
	if ! few; then
		special
		base
		if [ -s $tmp/special ]; then ours update-index -z --force-remove --stdin <$tmp/special; fi
		ours add -A --sparse --ignore-errors >&2 || partial=1
	fi
	tree=$(ours write-tree --missing-ok) # a partial clone lacks what lies outside the scope
}

# refs reads the Worker's refs and reflogs into $tmp/tips, as "OID NAME" or "OID".
refs() {
	if [ ! -e .git ]; then exit 3; fi
	if [ -n "$(find .git ! -type f ! -type d ! -type l -print -quit)" ]; then exit 3; fi
	special
	if [ -s $tmp/special ] && [ -n "$(find .git -type l -print -quit)" ]; then exit 3; fi
	head=$(theirs rev-parse --verify -q HEAD) || head=
	branch=$(theirs symbolic-ref -q --short HEAD) || branch=
	theirs for-each-ref --format='%(objectname) %(refname)' >$tmp/refs
	cut -d' ' -f1 $tmp/refs >$tmp/tips
	if [ -n "$head" ]; then echo "$head" >>$tmp/tips; fi
	find .git/logs .git/worktrees -path '*logs/*' -type f -exec cut -d' ' -f2 {} + 2>/dev/null | grep -xE '[0-9a-f]{40,64}' | grep -v '^0*$' >>$tmp/tips || :
	sort -u $tmp/tips -o $tmp/tips
	if [ -f .git/shallow ]; then cp .git/shallow $own/shallow; fi
	sed -n 's/^known //p; s/^collected //p' $tmp/told >$tmp/known
}

# made lists commits that nobody knows of yet: rev-list's output.
made() {
	{ sed 's/^/^/' $tmp/known; echo "^$point"; cat $tmp/tips; } | both rev-list --ignore-missing --stdin "$@"
}

case $ask in
work | diff | patch | tar | pack) base ;; # while it is found out what we are told
esac
cat >$tmp/told

case $ask in
work)
	refs
	if [ -n "$head" ]; then echo "head $head"; fi
	echo "count $(made --count)"
	made -n 1000 | sed 's/^/commit /'
	stage
	echo "tree $tree"
	sed -n 's/^collected //p' $tmp/told | while read -r oid; do
		if [ "$(both rev-parse -q --verify "$oid^{tree}")" = "$tree" ]; then echo "collected $oid"; break; fi
	done
	echo "changed $(ours diff-tree -r -z --name-only "$point" "$tree" | tr -dc '\000' | wc -c)"
	echo "diff $(ours diff-tree -r -p --binary --full-index --no-renames --no-ext-diff --no-textconv "$point" "$tree" | sha256sum | cut -d' ' -f1)"
	if [ -n "$partial" ]; then echo "partial 1"; fi
	;;
diff) # NUL-terminated: tree, partial, then diff-tree's own
	stage
	printf '%s\0%s\0' "$tree" "$partial"
	ours diff-tree -r -z -M --raw --numstat --no-commit-id "$point" "$tree"
	;;
patch)
	stage
	ours diff-tree -r -p -M --binary --full-index --no-ext-diff --no-textconv --no-color --src-prefix=a/ --dst-prefix=b/ "$point" "$tree"
	;;
tar)
	stage
	ours ls-files -z >$tmp/files
	ours ls-files -z -t | sed -zn 's/^S //p' >$tmp/outside # of a scope
	if [ -s $tmp/outside ]; then without $tmp/files $tmp/outside >$tmp/inside; mv $tmp/inside $tmp/files; fi
	# Never a setuid program: whoever unpacks it as root would have one of a Worker's.
	tar --create --format=gnu --mode=a-s --owner=0 --group=0 --numeric-owner --no-recursion --null --verbatim-files-from --files-from=$tmp/files
	;;
status)
	refs
	printf '%s\0%s\0%s\0' "$head" "$branch" "$(made --count)"
	if [ -n "$head" ]; then echo "$head" >$own/HEAD; fi
	if [ -f .git/index ]; then cp -p .git/index $own/index && chmod 600 $own/index; else both read-tree "$point"; fi
	both status --porcelain=v2 -z --untracked-files=all --no-renames --ignore-submodules=dirty
	;;
commits) # LIMIT
	refs
	printf '%s\0' "$(made --count)"
	made -n "$1" --topo-order --no-commit-header --format='%H%x00%P%x00%T%x00%an%x00%ae%x00%at%x00%cn%x00%ce%x00%ct%x00%s%x00' | tr -d '\n'
	;;
directories) # PATH: what it is, then the directories in it
	if [ ! -e "$1" ]; then printf 'missing\0'; exit; fi
	if [ ! -d "$1" ]; then printf 'file\0'; exit; fi
	top=$(pwd -P)
	case $(cd "$1" && pwd -P) in
	"$top" | "$top"/*) ;;
	*) printf 'outside\0'; exit ;;
	esac
	printf 'directory\0'
	find "$1/" -mindepth 1 -maxdepth 1 -type d ! -name .git -printf '%f\0' | sort -z
	;;
bundle)
	refs
	if [ "$(made --count)" -eq 0 ]; then exit 4; fi
	# refs of our own with the Worker's names
	sed -nE 's#^([0-9a-f]+) (refs/(heads|tags)/.*)$#create \2 \1#p' $tmp/refs | both update-ref --stdin
	names=--all
	if [ -n "$head" ]; then echo "$head" >$own/HEAD; names="HEAD --all"; fi
	both bundle create -q - $names --stdin <<END
$(sed 's/^/^/' $tmp/known)
^$point
END
	;;
pack) # REVISION, "" or a message for a commit of what is not committed
	refs
	tip=$(theirs rev-parse --verify -q --end-of-options "$1^{commit}") || exit 5
	if [ -n "$2" ]; then
		stage
		if [ "$(both rev-parse "$tip^{tree}")" != "$tree" ]; then
			tip=$(printf '%s\n' "$2" | GIT_AUTHOR_NAME=yoi GIT_AUTHOR_EMAIL=yoi@localhost GIT_COMMITTER_NAME=yoi GIT_COMMITTER_EMAIL=yoi@localhost both commit-tree -p "$tip" "$tree")
		fi
	fi
	{ sed 's/^/^/' $tmp/known; echo "^$point"; echo "$tip"; } >$tmp/revs
	echo "tip $tip $(both rev-list --count --stdin <$tmp/revs)"
	both pack-objects -q --revs --thin --stdout --delta-base-offset <$tmp/revs
	;;
esac
