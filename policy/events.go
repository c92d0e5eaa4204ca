package policy

import "slices"

// EventKind names a kind of event of the timeline or the journal for ever: append,
// never rename.
type EventKind string

const (
	EventWorkspaceCreated           EventKind = "workspace.created"
	EventWorkspaceForked            EventKind = "workspace.forked"
	EventWorkspaceRolledBack        EventKind = "workspace.rolled_back"
	EventWorkspaceCollected         EventKind = "workspace.collected"
	EventWorkspaceRemoved           EventKind = "workspace.removed"
	EventCachePublished             EventKind = "cache.published"
	EventCacheNotPublished          EventKind = "cache.not_published"
	EventWorkerStarted              EventKind = "worker.started"
	EventWorkerFailed               EventKind = "worker.failed"
	EventWorkerEnded                EventKind = "worker.ended"
	EventWorkerPaused               EventKind = "worker.paused"
	EventWorkerResumed              EventKind = "worker.resumed"
	EventWorkerOutputLeftOut        EventKind = "worker.output_left_out"
	EventSessionStarted             EventKind = "session.started"
	EventSessionEnded               EventKind = "session.ended"
	EventRepositoryAdded            EventKind = "repository.added"
	EventRepositoryFetched          EventKind = "repository.fetched"
	EventRepositoryObjectsFetched   EventKind = "repository.objects_fetched"
	EventRepositoryRemoved          EventKind = "repository.removed"
	EventRepositoryCollectedDropped EventKind = "repository.collected_dropped"
	EventPatchAdded                 EventKind = "patch.added"
	EventPatchRemoved               EventKind = "patch.removed"
	EventBundleAdded                EventKind = "bundle.added"
	EventBundleRemoved              EventKind = "bundle.removed"
	EventImageImported              EventKind = "image.imported"
	EventImageRemoved               EventKind = "image.removed"
	EventSnapshotExported           EventKind = "snapshot.exported"
	EventSnapshotRemoved            EventKind = "snapshot.removed"
	EventRuntimeRecovered           EventKind = "runtime.recovered"
	EventRuntimeReloaded            EventKind = "runtime.reloaded"
	EventDiagnostic                 EventKind = "diagnostic"
	EventEntriesLost                EventKind = "journal.entries_lost"
)

// EventInfo says what a kind of event is. Its texts are the journal's message catalog
// (systemd/yoi.catalog): @FIELD@ is a field of the entry.
type EventInfo struct {
	Kind EventKind
	// MessageID is the journal's MESSAGE_ID, drawn once and never changed.
	MessageID string
	Title     string // a heading
	Means     string // sentences
	Next      string // what to do
}

// Events lists every kind of event, in the order of the document.
func Events() []EventInfo { return slices.Clone(events) }

// DescribeEvent finds a kind; ok is false for one that is not in the table.
func DescribeEvent(k EventKind) (info EventInfo, ok bool) {
	i := slices.IndexFunc(events, func(e EventInfo) bool { return e.Kind == k })
	if i < 0 {
		return EventInfo{}, false
	}
	return events[i], true
}

var events = []EventInfo{
	{EventWorkspaceCreated, "932e2d4b6eca169fe896e9a135240ebc", "An Execution Workspace was made",
		"A working tree at an exact commit is there for Workers; the entry says by which strategy.",
		"yoi ws show @YOI_ALLOCATION_ID@ shows it, yoi ws evidence what it stands on. Nothing is to be done."},
	{EventWorkspaceForked, "21ad0645909d40047c9d37438478da02", "An Execution Workspace was forked from another",
		"A copy of a workspace as it was at that moment is there: files, commits, index.",
		"Nothing is to be done; yoi ws evidence @YOI_ALLOCATION_ID@ names the ancestor."},
	{EventWorkspaceRolledBack, "c1b87db06d896ee8f67388678454ec31", "An Execution Workspace was rolled back to a snapshot",
		"Its files are those of the snapshot again. What was there before is a snapshot itself.",
		"To undo it, roll back to the snapshot that the entry names as before."},
	{EventWorkspaceCollected, "7279e5e5d93f62e5a5e45146ba2fbb05", "Commits of a workspace were collected",
		"Commits that a Worker made are in the repository cache, under the name that the entry has, checked by git.",
		"yoi ws create REPOSITORY@collected:NAME starts from them."},
	{EventWorkspaceRemoved, "1aac3663ea189734e9b113e8644be79d", "An Execution Workspace was removed",
		"Its files are gone or on their way; its record stays.",
		"Nothing is to be done. Who asked for it is in the entries before: a policy, gc or a caller."},
	{EventCachePublished, "d5133819376331be7be8743d2ccbf942", "A shared cache was published",
		"What a trusted Worker left is the base of later workspaces with the same key.",
		"Nothing is to be done; yoi gc keeps shared caches below cache.shared_max_bytes."},
	{EventCacheNotPublished, "6fed3e036861aeaafd4c9ba9f4c1cd8e", "A shared cache was not published",
		"A Worker that may publish caches left nothing that could be taken; the entry says why.",
		"See the reason: too large is cache.dependency_max_bytes or cache.build_max_bytes of config.toml."},
	{EventWorkerStarted, "868921c91f44057f06b2e25d976d9398", "A Worker was started",
		"A command runs in a sandbox of its own.",
		"yoi worker show @YOI_WORKER_ID@ shows it, journalctl YOI_WORKER_ID=@YOI_WORKER_ID@ its whole story."},
	{EventWorkerFailed, "b8dc471530a976e5bfa75c6b461191e7", "A Worker could not be started",
		"The sandbox was not made, or the command could not be executed in it; nothing of it runs.",
		"The diagnostic @YOI_DIAGNOSTIC@ says why; the next entry has its message and hint. yoi doctor says what this host can do."},
	{EventWorkerEnded, "00180367e8426c02064cd9507aabe2e3", "A Worker ended",
		"The entry says how: the exit code or signal, and what ended it if that was not the command itself: oom_killed and tasks_denied are limits of memory and processes, timed_out the time limit, quota_exceeded the workspace's quota, stopped systemctl stop; lost means that no outcome was written, as after a loss of power.",
		"Raise the limit that it ran into, if it should have gone on; yoi worker show @YOI_WORKER_ID@ has times, usage and commits."},
	{EventWorkerPaused, "e103001d46e8aaeb6278ffd3f0e02bd4", "A Worker was paused",
		"Its processes stand still until somebody lets them go on.",
		"yoi worker resume @YOI_WORKER_ID@"},
	{EventWorkerResumed, "83c0cae365ae054b53fd9ce0749eccd7", "A Worker was resumed",
		"Its processes go on.",
		"Nothing is to be done."},
	{EventWorkerOutputLeftOut, "81b7d7e9fb89d3635d42fae7996afd98", "Some of a Worker's output is not in the journal",
		"The Worker wrote more than journal.worker_output_rate or journal.worker_output_max of config.toml allow, or was given secrets that it could print. The Worker was not held up, and its log file has as much as log_size keeps.",
		"yoi worker logs @YOI_WORKER_ID@ shows it. Raise the bound in config.toml if the journal is to have more."},
	{EventSessionStarted, "20a38ac654861e69d4b1dc90ec62208e", "Somebody entered a Worker",
		"A command was started beside the Worker, or its terminal attached to; the entry has the caller's uid.",
		"Nothing is to be done if that was meant to be; who may call is the socket's group."},
	{EventSessionEnded, "81844b031327cba24ce34a2dc280ae9b", "Somebody left a Worker",
		"The command beside the Worker ended, or its terminal was detached from.",
		"Nothing is to be done."},
	{EventRepositoryAdded, "cbc46659531f7d81213e184c4027d1a1", "A repository was registered",
		"Workspaces can be made of it.",
		"Nothing is to be done; yoi repo list"},
	{EventRepositoryFetched, "c1498163f5f956278a66a52c0dff88b4", "A repository was fetched",
		"The cache has what its source had at that time.",
		"Nothing is to be done."},
	{EventRepositoryObjectsFetched, "771d4d58b8fac08645e7f53de8453683", "Missing objects of a repository were fetched",
		"A partial mirror got the file contents that a scope needs.",
		"Nothing is to be done."},
	{EventRepositoryRemoved, "0117999f470b2375eeb6a70eabfe04e1", "A repository was removed",
		"Its mirror and trees are gone from the cache; its source is as it was.",
		"Nothing is to be done."},
	{EventRepositoryCollectedDropped, "7900583b25fa6f9ddbad03838ffd2ab3", "Collected commits were dropped",
		"A name of collected commits is gone; gc takes the commits that nothing else holds.",
		"Nothing is to be done if that was meant to be."},
	{EventPatchAdded, "a5abadf4222861da42f666847d8bf177", "A patch was stored",
		"Workspaces can be made with it, by its digest.",
		"Nothing is to be done."},
	{EventPatchRemoved, "9f1759aae9d6414da823180df5daa566", "A patch was removed",
		"Somebody asked for it, or nobody has used it for longer than cache.patches_unused_for.",
		"Store it again if it is needed: yoi patch add FILE"},
	{EventBundleAdded, "65d8fd97839af4918bead6bd244bd641", "A configuration bundle was stored",
		"Policies can name it by its digest.",
		"Nothing is to be done."},
	{EventBundleRemoved, "2a65fdcf78bce466447a469485f6626c", "A configuration bundle was removed",
		"No workspace had it.",
		"Store it again if it is needed: yoi bundle add DIRECTORY"},
	{EventImageImported, "fe593d0cc45079cf14d9ca608372e369", "A base image was imported",
		"Policies can name it as image:NAME.",
		"Nothing is to be done."},
	{EventImageRemoved, "51792b4ae42365809fb38a31055e98c6", "A base image was removed",
		"No workspace stood on it.",
		"Nothing is to be done."},
	{EventSnapshotExported, "1e37fd3c369ba6185710fe487cb16f32", "A snapshot was written to a store",
		"Other hosts can make workspaces of it, by its digest.",
		"Nothing is to be done."},
	{EventSnapshotRemoved, "5cdb7960fbb91532685d5cd6e15cb6fc", "A snapshot was removed from a store",
		"Whoever names its digest is refused from now on.",
		"Export it again if it is needed: yoi snapshot export"},
	{EventRuntimeRecovered, "76837cff86c2da0c9ea797490133e2d6", "What a crash left was cleaned up",
		"At its start the daemon removed what dead processes had left, and took over the Workers that live: the entry counts both.",
		"Nothing is to be done. If it was no restart of yours, see the entries before for why a daemon ended: journalctl -u yoi-runtimed -u yoi-helper"},
	{EventRuntimeReloaded, "366d7e85ab8024353b266f69d6dbe810", "The configuration was read again",
		"config.toml is in force as it is now. What exists keeps what it was made with.",
		"Nothing is to be done."},
	{EventDiagnostic, "0e38f460b3357fc185a029c6b0010c5d", "A refusal or warning: @YOI_DIAGNOSTIC@",
		"A daemon refused something, failed at it or found something that an operator should know. The message says what; the code is in the list of diagnostics, /usr/share/doc/yoi-runtime/diagnostics.md.",
		"@YOI_HINT@"},
	{EventEntriesLost, "37c92f67501017eccdf723cbf13860d3", "Entries were lost on their way to the journal",
		"The journal took nothing for so long that the daemon's queue was full. Daemons and Workers went on; these entries are nowhere.",
		"See why the journal stood still: systemctl status systemd-journald, df /var/log/journal. yoi events has all events."},
}
