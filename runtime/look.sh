# What a workspace holds, asked by git in a sandbox of its own in which the
# workspace is mounted read-only. Arguments: what is asked, the repository, the
# point's commit and its tree, and what the question wants besides. Standard input: how
# many paths there are to look at and how many are gone, where it is known where alone
# the files can differ from the point's, else dashes; of how many bytes these two lists
# are; the lists, each path terminated by NUL; commits that need not be told, one to a
# line; and "collected OID" for each that the cache was given from a workspace.
#
# It runs at each Worker's end, so that programs are started only where there is
# something to say: one costs a good part of what a Worker's launch does.
#
# Git runs with a git directory of ours, so that no configuration, hook, attribute
# file, graft, replacement or alternate of the Worker's takes effect even in here.
# Only the Worker's refs are read through its own. The answer is a claim all the
# same: who looks reads it with that in mind.
#
# Exit codes: 3, something that git would wait for for ever, or no git directory;
# 4, there is nothing; 5, no such revision. Others are git's.
set -eu
ask=$1 repo=$2 point=$3 same=$4
shift 4
export HOME=/tmp LC_ALL=C GIT_CONFIG_NOSYSTEM=1 GIT_CONFIG_GLOBAL=/dev/null GIT_ATTR_NOSYSTEM=1 \
	GIT_NO_REPLACE_OBJECTS=1 GIT_NO_LAZY_FETCH=1 GIT_OPTIONAL_LOCKS=0 GIT_TERMINAL_PROMPT=0 GIT_GRAFT_FILE=/dev/null
tmp=/scratch/.look own=/scratch/.look/git
mkdir -p $tmp $own/objects/info $own/objects/pack $own/refs
echo "ref: refs/heads/none" >$own/HEAD
version=0
if [ ${#point} -eq 64 ]; then version=1; fi
echo "[core]
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
[fastimport]
	unpackLimit = 0" >$own/config
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

# few makes $tree of the point's, and counts $changes, where it is known which paths can
# differ, with an index of those alone: of 100,000 files one takes longer to read than
# they do. What is unusual makes it fail.
few() {
	if [ "$files" = - ]; then return 1; fi
	if [ "$gone" -gt 0 ]; then
		listed $tmp/gone -z --name-only >>$tmp/few || return 1
		sort -zu $tmp/few -o $tmp/few
	fi
	# What the point has at those paths. Without stat data git reads each file.
	listed $tmp/few >$tmp/had || return 1
	if [ -s $tmp/had ]; then ours update-index --index-info <$tmp/had || return 1; fi
	ours check-ignore -z --stdin <$tmp/few >$tmp/ignored || [ $? -eq 1 ] || return 1 # what is tracked is not
	if [ -s $tmp/ignored ]; then
		without $tmp/few $tmp/ignored >$tmp/kept
		mv $tmp/kept $tmp/few
	fi
	ours update-index -z --add --remove --replace --stdin <$tmp/few >&2 || return 1
	ours ls-files -s >$tmp/has || return 1
	# Git quotes names as fast-import takes them. What is gone goes first: a directory
	# may be where it was.
	awk -v point="$point" '
		{
			split($0, word, " ")
			path = substr($0, index($0, "\t") + 1)
		}
		now { if (was[path] != word[1] " " word[2]) made[path] = word[1] " " word[2]; has[path] = 1 }
		!now { was[path] = word[1] " " substr(word[3], 1, length(point)) }
		END {
			for (path in was) if (!(path in has)) { lines = lines "D " path "\n"; n++ }
			for (path in made) { lines = lines "M " made[path] " " path "\n"; n++ }
			if (n) printf "# %d\ncommit refs/heads/few\ncommitter yoi <yoi@localhost> 0 +0000\ndata 0\nfrom %s\n%sls \"\"\n", n, point, lines
		}' $tmp/had now=1 $tmp/has >$tmp/import || return 1
	if [ ! -s $tmp/import ]; then return; fi
	read -r kind changes <$tmp/import
	ours fast-import --quiet <$tmp/import >$tmp/top || return 1
	read -r mode kind tree <$tmp/top
	[ "$mode $kind" = "040000 tree" ]
}

# listed lists the files that the point has at the paths of a list, or below them.
listed() {
	local paths=$1
	shift
	GIT_DIR=$own GIT_WORK_TREE=$PWD GIT_LITERAL_PATHSPECS=1 xargs -0 -r -a "$paths" git ls-tree -r "$@" "$point" --
}

# again has git read the tracked files of a list, whatever their stat data says: many a
# git compares times by the second, so that an edit of the same size in the second in
# which the workspace was made is none to it, once the mtime is put back. (Their entries
# stay: line ends are converted by what the file had before.) Others whose names go on as
# one of theirs does may be read too.
again() {
	sed -z 's/^/\t/' "$1" | tr '\000' '\n' >$tmp/names
	ours ls-files -s -z | grep -zFf $tmp/names | ours update-index -z --index-info
}

# touched lists the tracked files that have changed since the index was written. Only
# the kernel sets the time by which that is told.
touched() {
	if [ ! -f "/run/yoi/base/$repo/index" ]; then return; fi # git has no stat data to believe
	find . -path ./.git -prune -o ! -type d -newercm "/run/yoi/base/$repo/index" -printf '%P\0' >$tmp/newer || partial=1
	if [ -s $tmp/newer ]; then
		ours ls-files -z >$tmp/tracked
		sort -z $tmp/newer $tmp/tracked | uniq -zd
	fi
}

# stage makes $tree of all files that are not ignored.
stage() {
	partial= all= tree=$same changes=
	if [ "$files $gone" = "0 0" ]; then return; fi
	if ! few; then
		all=1 changes=
		special
		base
		if [ -s $tmp/special ]; then ours update-index -z --force-remove --stdin <$tmp/special; fi
		touched >$tmp/touched
		if [ -s $tmp/touched ]; then again $tmp/touched || partial=1; fi
		ours add -A --sparse --ignore-errors >&2 || partial=1
		tree=$(ours write-tree --missing-ok) # a partial clone lacks what lies outside the scope
	fi
}

# refs reads the commits of the Worker's refs and reflogs into $tmp/tips, and those
# of them that nobody has told us of into $tmp/new.
refs() {
	if [ ! -e .git ]; then exit 3; fi
	find .git ! -type f ! -type d ! -type l -fprint $tmp/odd -quit -o -type f \( -path '.git/logs/*' -o -path '.git/worktrees/*logs/*' \) \
		-exec sed -nE '/^[0-9a-f]+ 0+ /d; s/^[0-9a-f]+ ([0-9a-f]{40,64}) .*/\1/p' {} + >$tmp/tips 2>/dev/null || : # what cannot be read
	if [ -s $tmp/odd ]; then exit 3; fi
	if [ "$files" = - ]; then # else there is nothing special
		special
		if [ -s $tmp/special ] && [ -n "$(find .git -type l -print -quit)" ]; then exit 3; fi
	fi
	head=$(theirs rev-parse --verify -q HEAD) || head=
	if [ -n "$head" ]; then echo "$head" >>$tmp/tips; fi
	theirs for-each-ref --format='%(objectname)' >>$tmp/tips
	grep -vxFf $tmp/told $tmp/tips >$tmp/new || [ $? -eq 1 ]
	if [ -f .git/shallow ]; then cp .git/shallow $own/shallow; fi
}

# made lists commits that nobody knows of yet: rev-list's output.
made() {
	{ sed -nE 's/^[0-9a-f]{40,64}$/^&/p' $tmp/told; cat $tmp/new; } | both rev-list --ignore-missing --stdin "$@"
}

# number is how many they are.
number() { if [ -s $tmp/new ]; then made --count; else echo 0; fi; }

read -r files gone filesize gonesize
if [ "$filesize" -gt 0 ]; then head -c "$filesize"; fi >$tmp/few
if [ "$gonesize" -gt 0 ]; then head -c "$gonesize" >$tmp/gone; fi
cat >$tmp/told

case $ask in
work)
	refs
	if [ -n "$head" ]; then echo "head $head"; fi
	echo "count $(number)"
	if [ -s $tmp/new ]; then made -n 1000 | sed 's/^/commit /'; fi
	stage
	echo "tree $tree"
	if [ "$tree" = "$same" ]; then
		echo "changed 0"
	else
		sed -n 's/^collected //p' $tmp/told | while read -r oid; do
			if [ "$(both rev-parse -q --verify "$oid^{tree}")" = "$tree" ]; then echo "collected $oid"; break; fi
		done
		echo "changed ${changes:-$(ours diff-tree -r --name-only "$point" "$tree" | wc -l)}" # a name is one line, quoted
		sum=$(ours diff-tree -r -p --binary --full-index --no-renames --no-ext-diff --no-textconv "$point" "$tree" | sha256sum)
		echo "diff ${sum%% *}"
	fi
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
	if [ -n "$all" ]; then
		ours ls-files -z >$tmp/files
		ours ls-files -z -t | sed -zn 's/^S //p' >$tmp/outside # of a scope
		if [ -s $tmp/outside ]; then without $tmp/files $tmp/outside >$tmp/inside; mv $tmp/inside $tmp/files; fi
	else
		ours ls-tree -r -z --name-only "$tree" >$tmp/files
	fi
	# Never a setuid program: whoever unpacks it as root would have one of a Worker's.
	tar --create --format=gnu --mode=a-s --owner=0 --group=0 --numeric-owner --no-recursion --null --verbatim-files-from --files-from=$tmp/files
	;;
status)
	refs
	branch=$(theirs symbolic-ref -q --short HEAD) || branch=
	printf '%s\0%s\0%s\0' "$head" "$branch" "$(number)"
	if [ -n "$head" ]; then echo "$head" >$own/HEAD; fi
	if [ -f .git/index ]; then cp -p .git/index $own/index && chmod 600 $own/index; else both read-tree "$point"; fi
	both status --porcelain=v2 -z --untracked-files=all --no-renames --ignore-submodules=dirty
	;;
commits) # LIMIT
	refs
	printf '%s\0' "$(number)"
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
	if [ "$(number)" -eq 0 ]; then exit 4; fi
	# refs of our own with the Worker's names
	theirs for-each-ref --format='create %(refname) %(objectname)' refs/heads refs/tags | both update-ref --stdin
	names=--all
	if [ -n "$head" ]; then echo "$head" >$own/HEAD; names="HEAD --all"; fi
	both bundle create -q - $names --stdin <<END
$(sed -nE 's/^[0-9a-f]{40,64}$/^&/p' $tmp/told)
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
	{ sed -nE 's/^[0-9a-f]{40,64}$/^&/p' $tmp/told; echo "$tip"; } >$tmp/revs
	echo "tip $tip $(both rev-list --count --stdin <$tmp/revs)"
	both pack-objects -q --revs --thin --stdout --delta-base-offset <$tmp/revs
	;;
esac
