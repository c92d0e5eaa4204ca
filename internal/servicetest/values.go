package servicetest

import (
	"strings"
	"time"

	"yoi.dev/yoi-runtime/egress"
	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/runtime"
)

// The ids in the canned values.
const (
	Repository policy.RepositoryID = "hello"
	Allocation policy.AllocationID = "ws-0123456789abcdef"
	Worker     policy.WorkerID     = "wk-0123456789abcdef"
	Patch      policy.PatchDigest  = "sha256:3333333333333333333333333333333333333333333333333333333333333333"
	Commit                         = "1111111111111111111111111111111111111111"
	Tree                           = "2222222222222222222222222222222222222222"
)

// Then is the time in the canned values.
var Then = time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)

func warning() policy.Diagnostic {
	return *policy.Warnf(policy.CodeShallowSource, "fake.op", "history is cut").With("depth", "1").Item("commit", Commit)
}

// Point, Workspace and the others are the canned values.
func Point() policy.RepositoryPoint {
	return policy.RepositoryPoint{
		RepositoryID: Repository, CommitID: Commit, TreeID: Tree,
		Selector: policy.Selector{Kind: policy.SelectBranch, Value: "main"}, ResolvedAt: Then,
		CommittedAt: Then.Add(-time.Hour), Subject: "Say hello", Scope: policy.Scope{"src"}, Snapshot: "sha256:" + strings.Repeat("5a", 32),
	}
}

func Repositories() []runtime.Repository {
	return []runtime.Repository{{
		ID: Repository, Source: "https://example.org/hello.git", CreatedAt: Then, FetchedAt: Then.Add(time.Minute),
		CacheBytes: 5 << 20, Trees: 2,
		Options: policy.RepositoryOptions{Filter: "blob:none", Cache: []policy.DependencyCache{{Path: "node_modules", Key: []string{"package-lock.json"}}}, Artifacts: policy.ArtifactPolicy{Exclude: []string{"default"}, Keep: []string{"build/"}}},
	}}
}

func Refs() runtime.RefList {
	return runtime.RefList{Items: []runtime.Ref{{Name: "refs/heads/main", CommitID: Commit}, {Name: "refs/tags/v1", CommitID: Commit}}, More: true}
}

func Patches() []runtime.Patch {
	return []runtime.Patch{{Digest: Patch, Bytes: 100, Files: 2, AddedAt: Then, UsedAt: Then}}
}

func Bundles() []runtime.Bundle {
	return []runtime.Bundle{{Digest: policy.BundleDigest(Patch), Files: 3, Bytes: 400, UsedAt: Then}}
}

func Images() []runtime.Image {
	return []runtime.Image{{
		Name: "debian-12", ID: "im-0123456789abcdef", Digest: "sha256:" + strings.Repeat("4", 64), Ref: "docker.io/library/debian:12",
		Format: "oci", Driver: policy.ImageOverlay, Layers: 2, Entries: 9000, Bytes: 120 << 20, CreatedAt: Then,
		Diagnostics: []policy.Diagnostic{warning()},
	}}
}

func rootImage() *runtime.RootImage {
	i := Images()[0]
	return &runtime.RootImage{Name: i.Name, Digest: i.Digest, Driver: i.Driver}
}

func Workspace() runtime.Workspace {
	return runtime.Workspace{
		ID: Allocation, WorkspaceID: "default", WorkerID: Worker, Status: runtime.WorkspaceStopped,
		Points: []policy.RepositoryPoint{Point()}, Strategy: policy.StrategyReflink, StrategyReason: "the file system clones",
		DirtyState: policy.CleanPointOnly, Cleanup: policy.CleanupPolicy{Mode: policy.KeepFor, For: time.Hour, DiscardUncollected: true},
		SandboxDigest: "sha256:00", Roots: []string{"/workspace/hello"}, CreatedAt: Then, StoppedAt: Then.Add(time.Minute),
		RemovedAt: Then.Add(time.Hour), Ancestor: "ws-1111111111111111", Diagnostics: []policy.Diagnostic{warning()},
		RootImage: rootImage(),
	}
}

func WorkerRecord() runtime.Worker {
	ws := Workspace()
	return runtime.Worker{
		ID: Worker, AllocationID: Allocation, WorkspaceID: "default", Status: runtime.WorkerExited,
		Command: []string{"make", "-j2"}, RelativeCwd: "src", CreatedAt: Then, StartedAt: Then.Add(time.Second),
		EndedAt: Then.Add(time.Minute), Workspace: &ws, Diagnostics: []policy.Diagnostic{warning()},
		Network:     &policy.NetworkUsage{Allowed: 2, Refused: 1, BytesOut: 100, BytesIn: 200, Unlogged: 1, Rules: []policy.NetworkRuleUsage{{Rule: "example.org:443", Allowed: 2, BytesOut: 100, BytesIn: 200}}},
		Allow:       []string{"example.org:443"},
		Protections: &policy.Protections{LandlockABI: 7, CgroupVersion: 2, IDRange: 65536},
		ToolsDigest: "sha256:" + strings.Repeat("6", 64),
		Secrets:     []policy.SecretUse{{Handle: "npm", As: policy.SecretHTTPHeader, Name: "X-Token", Host: "npm.example.org", Store: "file"}},
		Terminal:    true, Paused: true, Sessions: []runtime.Session{session()}, SessionsBefore: 3,
		Outcome: &runtime.Outcome{
			ExitCode: 137, Signal: "SIGKILL", CoreDumped: true, TimedOut: true, OOMKilled: true, TasksDenied: true, Stopped: true, Lost: true, Exceeded: "disk_bytes",
			Denied:   []runtime.DeniedCall{{Call: "ptrace", Answer: "EPERM", Program: "gdb", Count: 3}},
			UserTime: time.Second, SystemTime: time.Millisecond, MaxRSS: 1 << 20, WallTime: time.Minute,
			Work: []runtime.Work{{
				RepositoryID: "app", Head: strings.Repeat("a", 40), CommitCount: 1, Commits: []string{strings.Repeat("a", 40)},
				Tree: strings.Repeat("b", 40), ChangedPaths: 2, DiffDigest: "sha256:" + strings.Repeat("c", 64),
				CollectedAs: strings.Repeat("a", 40), Partial: true,
			}},
		},
	}
}

func Evidence() runtime.Evidence {
	return runtime.Evidence{
		Version: 1, RuntimeID: "rt-0123456789abcdef", AllocationID: Allocation, WorkspaceID: "default",
		Points: []policy.RepositoryPoint{Point()}, Strategy: policy.StrategyReflink, StrategyReason: "the file system clones",
		DirtyState: policy.CleanPointOnly, Changes: []runtime.DirtyState{{
			RepositoryID: Repository, Kind: policy.PatchArtifact, Digest: string(Patch), Files: 2, Bytes: 100,
			TreeID: Tree, ChangedPaths: 2, CreatedAt: Then, Rounds: 2, Excluded: []string{"node_modules/"}, ExcludedCount: 1,
			Source: &runtime.SourceState{Head: "refs/heads/main", IndexDigest: string(Patch), Operations: []string{"merge"}, Staged: 1, Unstaged: 2, Untracked: 3, Conflicted: 4},
		}},
		SandboxPolicy: sandbox(), SandboxDigest: "sha256:00", RootImage: rootImage(), SeccompDigest: "sha256:11",
		Cleanup: policy.CleanupPolicy{Mode: policy.RemoveOnStop}, Ancestor: "ws-1111111111111111", CreatedAt: Then,
		Files: 10, Bytes: 1000, Timings: map[string]time.Duration{"materialize": time.Millisecond},
		Workers: []runtime.Worker{WorkerRecord()}, Diagnostics: []policy.Diagnostic{warning()},
		Quota:  policy.QuotaEvidence{Bytes: policy.QuotaBtrfs, Inodes: policy.QuotaMeasured},
		Caches: []policy.CacheUse{{RepositoryID: Repository, Path: "node_modules", Key: []string{"package-lock.json"}, Digest: "33", Warm: true}},
	}
}

func sandbox() policy.SandboxPolicy {
	return policy.SandboxPolicy{
		Root: policy.RootSystem, Network: policy.NetworkPolicy{Mode: policy.NetworkNone, Rules: []string{"none"}},
		Seccomp: policy.SeccompDefault, SeccompAllow: []string{"ptrace"}, Env: map[string]string{"CI": ""},
		Limits: policy.Limits{WallClock: time.Hour, OpenFiles: 64, Processes: 64, FileSize: 1, AddressSpace: 1 << 30,
			StackSize: 1 << 20, CPUTime: time.Hour, OOMScoreAdj: 1, Nice: 1,
			MemoryMax: 1 << 30, MemoryHigh: 1 << 29, SwapMax: 1 << 20, Tasks: 64, CPUPercent: 150, CPUWeight: 50, IOWeight: 50,
			IORead: 1 << 20, IOWrite: 1 << 20, TmpSize: 1 << 30, HomeSize: 1 << 30, ShmSize: 1 << 26, LogSize: 1 << 26},
		Tools: []string{"git"}, ConfigBundle: policy.BundleDigest(Patch),
		Secrets: []policy.Secret{{Handle: "npm", As: policy.SecretHTTPHeader, Name: "X-Token", Host: "npm.example.org", Prefix: "Bearer "}},
		Require: []policy.Protection{policy.ProtectLandlock}, IDs: policy.IDsRange, ScratchNoExec: true,
		Quota: policy.Quota{Bytes: 1 << 20, Inodes: 100, Hard: true}, BuildCache: true, PublishCaches: true,
	}
}

func Doctor() runtime.DoctorReport {
	return runtime.DoctorReport{
		Severity: "degraded",
		Checks: []runtime.DoctorCheck{
			{Name: "user_namespaces", State: "ok", Message: "allowed"},
			{Name: "cgroups", State: "degraded", Message: "no controllers", Fix: "Boot with unified cgroups."},
		},
		Strategies: []runtime.StrategyCheck{
			{Name: policy.StrategyOverlay, Possible: true, Chosen: true, Reason: "works in a user namespace",
				Costs: []runtime.StrategyCost{{Files: 1000, Create: time.Millisecond, Remove: time.Millisecond, Runs: 3, Taken: true}}},
			{Name: policy.StrategyReflink, Reason: "ext4 has no reflinks", Fix: "Use xfs or btrfs."},
		},
	}
}

func RuntimeStatus() runtime.RuntimeStatus {
	return runtime.RuntimeStatus{
		Severity: "degraded", RuntimeID: "rt-0123456789abcdef", Version: "1.2.3", StartedAt: Then, Daemon: true, Helper: "ok",
		DiskBytes: 100 << 30, DiskFreeBytes: 1 << 29, Workers: 3, Workspaces: map[runtime.WorkspaceStatus]int{runtime.WorkspaceActive: 4, runtime.WorkspaceStopped: 1},
		Repositories: 1, CacheBytes: 1288490188, CacheMeasuredAt: Then,
		LastCleanup: &runtime.CleanupRecord{At: Then, Removed: 2, FreedBytes: 5 << 20},
		Held:        12, OpenIntents: 1, Leftovers: 2,
		Problems: []runtime.DoctorCheck{{Name: "disk", State: "degraded", Message: "512 MiB free for the Runtime root", Fix: "yoi gc"}},
	}
}

func Events() []runtime.Event {
	return []runtime.Event{
		{Seq: 1, Time: Then, Kind: "workspace.created", Owner: string(Allocation), Fields: map[string]string{"strategy": "reflink"}},
		{Seq: 2, Time: Then.Add(time.Second), Kind: "worker.started", Owner: string(Worker)},
	}
}

func Ledger() []runtime.LedgerRecord {
	return []runtime.LedgerRecord{
		{Stream: "runtime/s001", Seq: 1, Time: Then, Kind: "intent", Resource: "r1", Type: "directory", Owner: string(Allocation), Path: "execution-workspaces/" + string(Allocation)},
		{Stream: "runtime/s001", Seq: 2, Time: Then, Kind: "done", Resource: "r1"},
	}
}

func Diff() runtime.DiffReport {
	return runtime.DiffReport{Repositories: []runtime.RepositoryDiff{{
		RepositoryID: Repository, CommitID: Commit, Tree: Tree, FileCount: 2, Additions: 3, Deletions: 1, Partial: true,
		Files: []runtime.DiffFile{
			{Path: "new", OldPath: "old", Status: "renamed", OldMode: "100644", NewMode: "100755", Additions: 3, Deletions: 1},
			{Path: "image.png", Status: "added", OldMode: "000000", NewMode: "100644", Binary: true},
		},
	}}}
}

func Status() runtime.StatusReport {
	return runtime.StatusReport{Repositories: []runtime.RepositoryStatus{{
		RepositoryID: Repository, Head: Commit, Branch: "work", CommitCount: 2, Staged: 1, Unstaged: 1, Untracked: 1, Conflicted: 1,
		Entries: []runtime.StatusEntry{{Path: "a", Index: "M", Worktree: "."}, {Path: "b", Index: "?", Worktree: "?"}},
	}}}
}

func Commits() runtime.CommitsReport {
	return runtime.CommitsReport{Repositories: []runtime.RepositoryCommits{{
		RepositoryID: Repository, CommitCount: 1, Commits: []runtime.WorkspaceCommit{{
			ID: Commit, Parents: []string{Tree}, Tree: Tree, AuthorName: "A", AuthorEmail: "a@example.org", AuthoredAt: Then,
			CommitterName: "C", CommitterEmail: "c@example.org", CommittedAt: Then, Subject: "work",
		}},
	}}}
}

func Collected() []runtime.Collected {
	return []runtime.Collected{{
		RepositoryID: Repository, Name: "work/1", Selector: policy.Selector{Kind: policy.SelectCollected, Value: "work/1"},
		CommitID: Commit, TreeID: Tree, BaseID: Commit, AllocationID: Allocation, Commits: 2, Bytes: 300, CollectedAt: Then,
	}}
}

// StoredSnapshot is an exported workspace.
func StoredSnapshot() runtime.StoredSnapshot {
	return runtime.StoredSnapshot{
		Digest: "sha256:" + strings.Repeat("5a", 32), Kind: "workspace", Point: Point(), Source: "snapshot+https://store.example/app",
		Objects: 12, Files: 9, Bytes: 4096, CreatedAt: Then, Warnings: []policy.Diagnostic{warning()},
	}
}

func Snapshots() []runtime.Snapshot {
	return []runtime.Snapshot{{ID: "ws-2222222222222222", AllocationID: Allocation, Label: "before", Strategy: policy.StrategyReflink, CreatedAt: Then}}
}

func session() runtime.Session {
	return runtime.Session{
		ID: "se-0123456789abcdef", Kind: "exec", UID: 1000, Command: []string{"sh"}, RelativeCwd: "src", Terminal: true,
		StartedAt: Then, EndedAt: Then, End: "signaled", ExitCode: 137, Signal: "SIGKILL", HungUp: true,
		Denied: []runtime.DeniedCall{{Call: "ptrace", Answer: "EPERM", Program: "gdb", Count: 3}},
	}
}

// Egress is a Worker's way out.
func Egress() runtime.EgressReport {
	return runtime.EgressReport{
		Lost:     true,
		WorkerID: Worker, Policy: policy.NetworkPolicy{Mode: policy.NetworkAllowlist, Rules: []string{"example.org:443"}, Transparent: true, MaxBytes: 1, MaxConnections: 2, IdleTimeout: time.Second},
		Usage: *WorkerRecord().Network,
		Decisions: []runtime.Decision{
			{Time: Then, ID: 1, Via: egress.ViaConnect, Host: "example.org", Port: 443, Allowed: true, Rule: "example.org:443", Address: "192.0.2.1:443", Closed: true, BytesOut: 100, BytesIn: 200, Duration: time.Second},
			{Time: Then, ID: 2, Via: egress.ViaHTTP, Host: "evil.example", Port: 80, Reason: egress.ReasonRule},
		},
	}
}
