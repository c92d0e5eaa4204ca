package main

// section measures the rows of one number.
type section struct {
	row  int
	what string
	run  func(*room)
}

// suite is the table, top to bottom.
var suite = []section{
	{1, "launch of /bin/true by the running helper, against bubblewrap", launchAgainstBwrap},
	{2, "the same, against runc", launchAgainstRunc},
	{3, "launches per second, 8 at once, against bubblewrap", launchesAtOnce},
	{4, "yoi run -- true, against git worktree add, bubblewrap, git worktree remove", wholeRun},
	{5, "btrfs_snapshot of 100,000 files, against 1,000", snapshotBySize},
	{6, "overlay of 100,000 files, against 1,000", overlayBySize},
	{7, "reflink on xfs, against cp -a --reflink=always", reflinkAgainstCp},
	{8, "first git status in the sandbox, against a second one", firstStatus},
	{9, "removal as the caller sees it, against rm -rf", removal},
	{10, "ledger records, against bbolt", ledgerAgainstBbolt},
	{11, "a sparse scope of 1% of 100,000 files, against git worktree add", sparseScope},
	{12, "sizes, memory and start-up", sizes},
	{13, "a working tree at one moment, against cp -a --reflink=always", liveAgainstCp},
	{14, "yoi run on a snapshot of the working tree, against cp and rm", snapshotRun},
	{15, "first workspace from remote_snapshot, against git clone --depth 1", remoteSnapshot},
	{16, "a run with a warm npm cache, against npm ci and cp -a", warmCache},
	{17, "disk of the 20th workspace of 100,000 files", diskOfOneMore},
	{18, "ws fork of 100,000 files, against a snapshot, an overlay mount and cp", forks},
	{19, "ws diff after 10 edits in 100,000 files, against git status", diffs},
	{20, "worker exec of /bin/true by the running helper, against nsenter", enterAgainstNsenter},
	{21, "launch with every protection, against bubblewrap with the same filter", everyProtection},
	{22, "the same sustained, 8 at once", sustained},
	{23, "git status and go build inside, against outside", insideAndOutside},
	{24, "bytes and connections through the allowlist proxy, against none", throughTheProxy},
	{25, "200 clients of yoi-backend that list and 20 that create", manyClients},
	{26, "a scope of the service manager's, against busctl Ping", scopeAgainstPing},
	{27, "idle daemons under systemd: wake-ups, memory", idleDaemons},
	{28, "launches in scopes for ten minutes, and what they leave", sustainedScopes},
	{29, "an idle Worker's memory beside its own process", idleWorker},
	{30, "whole runs by copy, external, git_worktree, patch, direct mount, in an image, of a partial clone", otherStrategies},
	{31, "a Worker by yoi-runtimed and yoi-helper, against bubblewrap", workerByDaemons},
}
