package policy

// Code identifies one kind of diagnostic for ever: append, never rename.
// It is an error so that errors.Is(err, policy.CodeX) reads naturally.
type Code string

func (c Code) Error() string { return string(c) }

const (
	CodeInternal           Code = "internal"
	CodeBadRequest         Code = "bad_request"
	CodeRequestTooLarge    Code = "request_too_large"
	CodeUnsupportedVersion Code = "unsupported_version"
	CodeNotFound           Code = "not_found"
	CodeConflict           Code = "conflict"
	CodeCanceled           Code = "canceled"
	CodePeerRefused        Code = "peer_refused"
	CodeUnavailable        Code = "unavailable"
	CodeUnsupported        Code = "unsupported"
	CodeMethodNotAllowed   Code = "method_not_allowed"

	CodeRuntimeRootInvalid   Code = "runtime_root_invalid"
	CodeRuntimeRootUnsafe    Code = "runtime_root_unsafe"
	CodeRuntimeRootOverlap   Code = "runtime_root_overlap"
	CodeRuntimeRootBusy      Code = "runtime_root_busy"
	CodeRuntimeRootNewer     Code = "runtime_root_newer"
	CodeConfigInvalid        Code = "config_invalid"
	CodeWorkspaceFlagLegacy  Code = "workspace_flag_legacy"
	CodeIDInvalid            Code = "id_invalid"
	CodePolicyInvalid        Code = "policy_invalid"
	CodeLimitsInvalid        Code = "limits_invalid"
	CodeWorkerUnkillable     Code = "worker_unkillable"
	CodeIDRangeUnavailable   Code = "id_range_unavailable"
	CodeLimitsUnavailable    Code = "limits_unavailable"
	CodeNetworkRuleInvalid   Code = "network_rule_invalid"
	CodeEgressUnavailable    Code = "egress_unavailable"
	CodeEgressRefused        Code = "egress_refused"
	CodeEgressLost           Code = "egress_lost"
	CodeEnvironmentInvalid   Code = "environment_invalid"
	CodeCommandInvalid       Code = "command_invalid"
	CodeCommandNotFound      Code = "command_not_found"
	CodeCommandNotExecutable Code = "command_not_executable"

	CodeRepositoryUnknown      Code = "repository_unknown"
	CodeRepositoryExists       Code = "repository_exists"
	CodeRepositoryInUse        Code = "repository_in_use"
	CodeRepositoryEmpty        Code = "repository_empty"
	CodeSourceInvalid          Code = "source_invalid"
	CodeSourceUnreadable       Code = "source_unreadable"
	CodeSourceNotRepository    Code = "source_not_repository"
	CodeSourceDirty            Code = "source_dirty"
	CodeProtocolRefused        Code = "protocol_refused"
	CodeFetchFailed            Code = "fetch_failed"
	CodeObjectsInvalid         Code = "objects_invalid"
	CodeCacheCorrupt           Code = "cache_corrupt"
	CodeSelectorInvalid        Code = "selector_invalid"
	CodeSelectorMissing        Code = "selector_missing"
	CodeSelectorAmbiguous      Code = "selector_ambiguous"
	CodeSelectorNotCommit      Code = "selector_not_commit"
	CodeScopeInvalid           Code = "scope_invalid"
	CodeScopeEmpty             Code = "scope_empty"
	CodeGitMissing             Code = "git_missing"
	CodeGitFailed              Code = "git_failed"
	CodeSubmodulesNotFilled    Code = "submodules_not_filled"
	CodeLFSNotFilled           Code = "lfs_not_filled"
	CodePartialCloneRefused    Code = "partial_clone_refused"
	CodeShallowSource          Code = "shallow_source"
	CodePathCaseCollision      Code = "path_case_collision"
	CodeDirtyPolicyUnsupported Code = "dirty_policy_unsupported"
	CodePatchInvalid           Code = "patch_invalid"
	CodePatchEscapes           Code = "patch_escapes"
	CodePatchSubmodule         Code = "patch_submodule"
	CodePatchTooLarge          Code = "patch_too_large"
	CodePatchNotApplied        Code = "patch_not_applied"
	CodePatchUnknown           Code = "patch_unknown"
	CodePatchCorrupt           Code = "patch_corrupt"
	CodeNestedRepository       Code = "nested_repository"
	CodeFilterInvalid          Code = "filter_invalid"
	CodeFilterRefused          Code = "filter_refused"
	CodeObjectsUnavailable     Code = "objects_unavailable"

	CodeStrategyUnknown     Code = "strategy_unknown"
	CodeStrategyUnsupported Code = "strategy_unsupported"
	CodeExternalFailed      Code = "external_failed"
	CodeExternalWrong       Code = "external_result_wrong"
	CodeFileSkipped         Code = "file_skipped"
	CodeAttributesDropped   Code = "attributes_dropped"
	CodeDiskFull            Code = "disk_full"
	CodeQuotaExceeded       Code = "quota_exceeded"
	CodeQuotaUnsupported    Code = "quota_unsupported"
	CodeCopyFailed          Code = "copy_failed"
	CodeSourceChanged       Code = "source_changed"
	CodeDirectMountInUse    Code = "direct_mount_in_use"
	CodeNestedFileSystem    Code = "nested_file_system"
	CodePathTooLong         Code = "path_too_long"
	CodeAllocationUnknown   Code = "allocation_unknown"
	CodeAllocationNotActive Code = "allocation_not_active"
	CodeAllocationInUse     Code = "allocation_in_use"
	CodeUncollectedWork     Code = "uncollected_work"
	CodeProcessDied         Code = "process_died"
	CodeCleanupIncomplete   Code = "cleanup_incomplete"
	CodeWorkspaceUnreadable Code = "workspace_unreadable"
	CodeResultTooLarge      Code = "result_too_large"
	CodeNothingToCollect    Code = "nothing_to_collect"
	CodeCollectedExists     Code = "collected_exists"
	CodeSnapshotUnknown     Code = "snapshot_unknown"

	CodeImageUnknown       Code = "image_unknown"
	CodeImageExists        Code = "image_exists"
	CodeImageInUse         Code = "image_in_use"
	CodeImageInvalid       Code = "image_invalid"
	CodeImageAmbiguous     Code = "image_ambiguous"
	CodeImagePlatform      Code = "image_platform"
	CodeImageDigest        Code = "image_digest_mismatch"
	CodeImageLayerRefused  Code = "image_layer_refused"
	CodeImageLimit         Code = "image_limit_exceeded"
	CodeImageNeutralised   Code = "image_neutralised"
	CodeImageProgramFailed Code = "image_program_failed"

	CodeRemoteSnapshotUnknown   Code = "remote_snapshot_unknown"
	CodeSnapshotStoreInvalid    Code = "snapshot_store_invalid"
	CodeSnapshotStoreRefused    Code = "snapshot_store_refused"
	CodeSnapshotStoreFailed     Code = "snapshot_store_failed"
	CodeSnapshotStoreSlow       Code = "snapshot_store_slow"
	CodeSnapshotStoreRedirected Code = "snapshot_store_redirected"
	CodeSnapshotCredentials     Code = "snapshot_credentials_unsafe"
	CodeSnapshotTruncated       Code = "snapshot_truncated"
	CodeSnapshotInvalid         Code = "snapshot_invalid"
	CodeSnapshotDigest          Code = "snapshot_digest_mismatch"
	CodeSnapshotTooLarge        Code = "snapshot_too_large"

	CodeSecretUnknown     Code = "secret_unknown"
	CodeSecretRefused     Code = "secret_refused"
	CodeSecretUnavailable Code = "secret_unavailable"
	CodeSecretInvalid     Code = "secret_invalid"

	CodeToolUnknown Code = "tool_unknown"

	CodeBundleUnknown Code = "bundle_unknown"
	CodeBundleInUse   Code = "bundle_in_use"
	CodeBundleInvalid Code = "bundle_invalid"
	CodeBundleCorrupt Code = "bundle_corrupt"

	CodeCwdAbsolute      Code = "relative_cwd_absolute"
	CodeCwdEscape        Code = "relative_cwd_escape"
	CodeCwdSymlinkEscape Code = "relative_cwd_symlink_escape"
	CodeCwdMissing       Code = "relative_cwd_missing"
	CodeCwdNotDirectory  Code = "relative_cwd_not_directory"

	CodeWorkerUnknown         Code = "worker_unknown"
	CodeWorkerNotRunning      Code = "worker_not_running"
	CodeSignalInvalid         Code = "signal_invalid"
	CodeSessionUnknown        Code = "session_unknown"
	CodeSessionPolicyChanged  Code = "session_policy_changed"
	CodeWorkerNoTerminal      Code = "worker_no_terminal"
	CodeWorkerPaused          Code = "worker_paused"
	CodePauseUnavailable      Code = "pause_unavailable"
	CodeLaunchFailed          Code = "launch_failed"
	CodeNamespacesUnavailable Code = "namespaces_unavailable"
	CodeMountFailed           Code = "mount_failed"
	CodeSeccompUnavailable    Code = "seccomp_unavailable"
	CodeSeccompInvalid        Code = "seccomp_invalid"
	CodeIDRangeExhausted      Code = "id_range_exhausted"
	CodeIDMapUnavailable      Code = "idmap_unavailable"
	CodeKernelFeatureMissing  Code = "kernel_feature_missing"
	CodeServiceManager        Code = "service_manager_unavailable"

	CodeLedgerBroken    Code = "ledger_broken"
	CodeLedgerBusy      Code = "ledger_busy"
	CodeLedgerFailed    Code = "ledger_failed"
	CodeRegistryFailed  Code = "registry_failed"
	CodeLeftoverForeign Code = "leftover_foreign"
)

// Info is a code's entry in the catalog.
type Info struct {
	Code Code
	// Status is the HTTP status of the problem document.
	Status int
	// Title is RFC 9457's: the same for every occurrence.
	Title string
	// Hint is what to do next, unless the diagnostic says it better.
	Hint string
}

// Describe returns code's catalog entry. An unknown code, as a newer peer may
// send, is described as internal under its own name.
func Describe(code Code) Info {
	if i, ok := catalogIndex[code]; ok {
		return i
	}
	return Info{Code: code, Status: 500, Title: "Unknown diagnostic"}
}

// Catalog returns every code, in the order of the documentation.
func Catalog() []Info { return append([]Info(nil), catalog...) }

var catalogIndex = func() map[Code]Info {
	m := make(map[Code]Info, len(catalog))
	for _, i := range catalog {
		m[i.Code] = i
	}
	return m
}()

var catalog = []Info{
	{CodeInternal, 500, "Internal error", "Run again with -v, and report the journal's lines if it stays."},
	{CodeBadRequest, 400, "The request is malformed", "Compare the request with the OpenAPI document."},
	{CodeRequestTooLarge, 413, "The request is too large", "Send less in one request."},
	{CodeUnsupportedVersion, 400, "The protocol version is not supported", "Install the same version of yoi, yoi-runtimed and yoi-helper."},
	{CodeNotFound, 404, "No such resource", "List what exists first."},
	{CodeConflict, 409, "The request conflicts with the present state", "Look at the present state and try again."},
	{CodeCanceled, 499, "The operation was canceled", "Start it again when ready."},
	{CodePeerRefused, 403, "The calling user is not allowed on this socket", "Call as a user whom --allow-uid or --allow-group of the daemon admits, such as a member of the group yoi."},
	{CodeUnavailable, 503, "A needed service cannot be reached", "See that yoi-runtimed and yoi-helper run: systemctl status 'yoi-*'."},
	{CodeMethodNotAllowed, 405, "The resource does not have that method", "See the OpenAPI document: /v1/openapi.json."},
	{CodeUnsupported, 501, "Not possible on this host", "Run yoi doctor to see what this host can do."},

	{CodeRuntimeRootInvalid, 400, "The Runtime root cannot be used", "Name a directory that can be created or is a Runtime root already."},
	{CodeRuntimeRootUnsafe, 403, "The Runtime root's owner or mode is unsafe", "Make it owned by the calling user with mode 0700."},
	{CodeRuntimeRootOverlap, 400, "The Runtime root and another tree lie inside one another", "Choose a Runtime root outside every repository and store."},
	{CodeRuntimeRootBusy, 409, "Another process owns this Runtime root", "Use its daemon (yoi worker …), or name another --runtime-root."},
	{CodeRuntimeRootNewer, 409, "The Runtime root was written by a newer version", "Use that version, or another --runtime-root."},
	{CodeConfigInvalid, 400, "The configuration file is invalid", "Correct the line that the message names."},
	{CodeWorkspaceFlagLegacy, 400, "--workspace is a legacy bootstrap input", "Register the directory with yoi repo add and drop --workspace."},
	{CodeIDInvalid, 400, "The id is malformed", "Use lower-case letters, digits, dot, dash and underscore, at most 64 characters."},
	{CodePolicyInvalid, 400, "The policy is invalid", "Correct the field that the message names."},
	{CodeLimitsUnavailable, 503, "This host keeps no limits of all a Worker's processes together", "Run the helper in a delegated control group (Delegate=yes), or leave the limit out."},
	{CodeWorkerUnkillable, 409, "The Worker was killed and does not end", "One of its processes sleeps in the kernel, as on a file system that does not answer: yoi worker top. Its end is recorded when it comes."},
	{CodeIDRangeUnavailable, 503, "This user has no range of subordinate ids", "Install newuidmap and newgidmap, and give the user a range: usermod --add-subuids 100000-165535 --add-subgids 100000-165535 USER."},
	{CodeLimitsInvalid, 400, "The limits make no sense", "Correct the limit that the message names."},
	{CodeNetworkRuleInvalid, 400, "A network rule is invalid", "Write HOST:PORT, *.DOMAIN:PORT or ADDRESS:PORT, and @PREFIX behind a name that leads into a private network."},
	{CodeEgressUnavailable, 503, "The egress proxy could not be started", "See that yoi-egress lies beside the other programs, or name it by YOI_EGRESS."},
	{CodeEgressRefused, 200, "The network policy refused connections", "See yoi worker egress; add a rule if the connection was wanted."},
	{CodeEgressLost, 200, "The egress proxy ended before its Worker", "The Worker reached nothing from then on. Start another; the helper's log has when it was."},
	{CodeEnvironmentInvalid, 400, "The environment is invalid", "Write each variable as NAME=VALUE."},
	{CodeCommandInvalid, 400, "The command is invalid", "Give a command after --."},
	{CodeCommandNotFound, 422, "The command does not exist in the sandbox", "Name a program of the sandbox's PATH or a path inside the workspace."},
	{CodeCommandNotExecutable, 422, "The command cannot be executed", "Make it executable, and see that its interpreter exists in the sandbox."},

	{CodeRepositoryUnknown, 404, "No such repository", "See yoi repo list."},
	{CodeRepositoryExists, 409, "The repository id is taken by another source", "Choose another id with --id."},
	{CodeRepositoryInUse, 409, "Allocations still stand on the repository", "Remove them first: yoi ws list."},
	{CodeRepositoryEmpty, 422, "The repository has no commit", "Commit something first."},
	{CodeSourceInvalid, 400, "The source is malformed", "Give a local path or a file, ssh or https URL."},
	{CodeSourceUnreadable, 422, "The source cannot be read", "Check that it exists and that the calling user may read it."},
	{CodeSourceNotRepository, 422, "The source is not a git repository", "Name a repository, a linked worktree or a bare repository."},
	{CodeSourceDirty, 409, "The source has uncommitted changes", "Commit or stash them, or bring them along: --dirty current_worktree_snapshot, or --patch FILE."},
	{CodeProtocolRefused, 403, "The protocol is not allowed", "Use file, ssh or https."},
	{CodeFetchFailed, 502, "Fetching failed", "Check the source's address and your access to it."},
	{CodeObjectsInvalid, 422, "The source sent objects that fail fsck", "Run git fsck in the source and mend it."},
	{CodeCacheCorrupt, 500, "The repository cache is damaged", "It is rebuilt on the next use; run yoi repo fetch."},
	{CodeSelectorInvalid, 400, "The selector is malformed", "Give a branch, tag, commit or full ref name."},
	{CodeSelectorMissing, 404, "The selector names nothing", "See git branch -a and git tag in the source."},
	{CodeSelectorAmbiguous, 409, "The selector names more than one thing", "Give the full ref name or the whole commit id."},
	{CodeSelectorNotCommit, 422, "The selector names something that is not a commit", "Select a commit, or a tag of one."},
	{CodeScopeInvalid, 400, "The path scope is malformed", "Give a relative directory of the repository, without ..."},
	{CodeScopeEmpty, 422, "The path scope names nothing in the tree", "Check the path at that commit: git ls-tree."},
	{CodeGitMissing, 503, "git is missing or too old", "Install git 2.39 or newer."},
	{CodeGitFailed, 500, "A git command failed", "Run again with -v to see its output."},
	{CodeSubmodulesNotFilled, 422, "The tree has submodules, which are left as empty directories", "Register the submodule's repository and add it to the allocation."},
	{CodeLFSNotFilled, 422, "The tree has Git LFS pointers, which are left as pointer files", "Fetch the objects inside the Worker if its policy gives it a network."},
	{CodePartialCloneRefused, 422, "The source is a partial clone that lacks needed objects", "Fetch them in the source: git fetch --refetch."},
	{CodeShallowSource, 200, "The source is a shallow clone: history is cut", "Run git fetch --unshallow in the source for the whole history."},
	{CodePathCaseCollision, 422, "Two paths differ only in case on a case-folding file system", "Use a case-sensitive directory for the Runtime root."},
	{CodeDirtyPolicyUnsupported, 422, "The dirty-state policy is not possible here", "Use clean_point_only."},
	{CodePatchInvalid, 422, "The patch is malformed", "Make it with: git diff --binary HEAD."},
	{CodePatchEscapes, 422, "The patch names a path outside the tree", "Do not use this patch: no git diff writes such a path."},
	{CodePatchSubmodule, 422, "The patch reaches into a submodule", "Leave submodules out: git diff --binary --ignore-submodules HEAD."},
	{CodePatchTooLarge, 413, "The patch is too large", "Commit the change and select the commit, or split the patch."},
	{CodePatchNotApplied, 409, "The patch does not apply to the point", "Select the commit that it was made from, or make it anew."},
	{CodePatchUnknown, 404, "No such patch is stored", "Store it first: yoi patch add FILE."},
	{CodePatchCorrupt, 500, "The stored patch does not have its digest", "Remove it and store it anew: yoi patch rm, yoi patch add."},
	{CodeNestedRepository, 200, "A repository lies inside the working tree", "Its files come along, its git directory does not."},
	{CodeFilterInvalid, 400, "Not a usable object filter", "Give blob:none, tree:0 or blob:limit=SIZE, and only for a file, https or ssh URL: a path's objects are on this host already."},
	{CodeFilterRefused, 422, "The server does not filter objects", "Register the repository without a filter, or have the server allow it: git config uploadpack.allowFilter true."},
	{CodeObjectsUnavailable, 422, "Objects that the scope needs cannot be had from the server", "Try again; if it stays, fetch the repository or register it without a filter."},

	{CodeStrategyUnknown, 400, "No such materialization strategy", "See yoi doctor for the strategies."},
	{CodeStrategyUnsupported, 422, "The strategy is not possible on this file system", "Use --strategy auto, or a file system that has it: yoi doctor."},
	{CodeExternalFailed, 502, "The external materialization command failed", "Look at the Runtime's log for what it printed, and try it by hand: docs/configuration.md says how it is called."},
	{CodeExternalWrong, 502, "The external materialization command made another tree", "Mend the command: names, modes, owners, times, contents and attributes must be the source's, and no file may be shared with it."},
	{CodeFileSkipped, 200, "A special file was left out", "FIFOs, sockets and device nodes are never materialized."},
	{CodeAttributesDropped, 200, "Some extended attributes were left out", "Put the Runtime root on a file system with extended attributes and ACLs."},
	{CodeDiskFull, 507, "The disk is full", "Free space with yoi gc, or move the Runtime root."},
	{CodeQuotaExceeded, 507, "A quota is used up", "Remove workspaces, or raise the quota."},
	{CodeQuotaUnsupported, 422, "The quota cannot be enforced by the file system", "Leave out --hard-quota to have it measured, or use btrfs with quotas on (btrfs quota enable), or ext4 or xfs mounted with prjquota, and a privileged helper."},
	{CodeCopyFailed, 500, "Copying the tree failed", "Run again with -v to see which file."},
	{CodeSourceChanged, 409, "The source changed while it was read", "Stop what writes to it and try again."},
	{CodeDirectMountInUse, 409, "The directory is mounted into another Worker already", "Wait for that Worker, or use a materialized workspace."},
	{CodeNestedFileSystem, 422, "Another file system or subvolume lies inside the tree", "Exclude it by policy."},
	{CodePathTooLong, 422, "A path is too long", "Use a shorter Runtime root."},
	{CodeAllocationUnknown, 404, "No such execution workspace", "See yoi ws list."},
	{CodeAllocationNotActive, 409, "The execution workspace is not active", "Create another one: yoi ws create."},
	{CodeAllocationInUse, 409, "A live Worker stands on the execution workspace", "Stop it first: yoi worker stop."},
	{CodeUncollectedWork, 409, "The workspace holds commits or changes that nobody has collected", "Collect them, or say --discard."},
	{CodeProcessDied, 410, "The process that the execution workspace belonged to died", "Run it again, with --keep where the workspace is to outlive its process."},
	{CodeCleanupIncomplete, 500, "Some resources could not be removed yet", "They stay in the ledger; run yoi gc when the cause is gone."},
	{CodeWorkspaceUnreadable, 422, "Git cannot read the workspace", "Look at it with yoi worker spawn, and mend or remove what the message names."},
	{CodeResultTooLarge, 422, "The result is larger than the limit", "Raise --max-bytes, or take less."},
	{CodeNothingToCollect, 422, "The workspace has no commit of its own", "See yoi ws status; --uncommitted collects what is not committed."},
	{CodeCollectedExists, 409, "The name belongs to other collected commits", "Choose another name with --as, or say --force."},
	{CodeSnapshotUnknown, 404, "No such snapshot", "List the snapshots of the workspace first."},

	{CodeImageUnknown, 404, "No such image", "See yoi image list, or import it: yoi image import."},
	{CodeImageExists, 409, "The image name is taken by another image", "Choose another --name, or remove the old one: yoi image rm."},
	{CodeImageInUse, 409, "Execution workspaces stand on the image", "Remove them first: yoi ws list."},
	{CodeImageInvalid, 422, "The archive is not a usable image", "Give an OCI layout, an OCI or docker archive, or a tar file of a root file system."},
	{CodeImageAmbiguous, 409, "The archive holds more than one image", "Name one with --select."},
	{CodeImagePlatform, 422, "The image is for another platform", "Import an image for linux/amd64."},
	{CodeImageDigest, 422, "A part of the image does not have the digest that it should have", "Fetch or save the image again."},
	{CodeImageLayerRefused, 422, "A layer of the image holds something that is not allowed", "Rebuild the image without what the message names."},
	{CodeImageLimit, 422, "The image is larger than allowed", "Raise images.max_bytes or images.max_entries in config.toml."},
	{CodeImageNeutralised, 200, "Some of the image's files were changed or left out", "Setuid bits, capabilities and device nodes have no effect in a sandbox."},
	{CodeImageProgramFailed, 503, "The image program yoi-layers cannot do its work", "Install yoi-layers beside the other programs, and run yoi doctor."},

	{CodeRemoteSnapshotUnknown, 404, "The store has no such snapshot", "See yoi snapshot list; a snapshot is written by yoi snapshot export."},
	{CodeSnapshotStoreInvalid, 400, "The snapshot store's address is malformed", "Give a directory, an http or https URL, or s3://BUCKET/PREFIX, without credentials."},
	{CodeSnapshotStoreRefused, 403, "The snapshot store refused the credentials, or wants some", "Put them into snapshot-credentials.toml of the Runtime root (mode 0600), or into AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY."},
	{CodeSnapshotStoreFailed, 502, "The snapshot store failed", "Check the store's address and its own log, and try again."},
	{CodeSnapshotStoreSlow, 504, "The snapshot store sent or took nothing for too long", "Try again, or raise snapshots.stall_timeout in config.toml."},
	{CodeSnapshotStoreRedirected, 502, "The snapshot store redirects to another place", "Name the place that it redirects to, if you trust it."},
	{CodeSnapshotCredentials, 403, "The file of snapshot credentials can be read or written by others", "Make it owned by the calling user with mode 0600."},
	{CodeSnapshotTruncated, 502, "The snapshot ends too early", "Try again; if it stays, export it again."},
	{CodeSnapshotInvalid, 422, "The snapshot is malformed, or holds what is never unpacked", "Export it again with yoi snapshot export."},
	{CodeSnapshotDigest, 422, "The snapshot is not the one that its digest names", "Do not use it: see who can write to the store, and export it again."},
	{CodeSnapshotTooLarge, 413, "The snapshot is larger than the policy allows", "Raise snapshots.max_bytes, max_files or max_ratio in config.toml if the store is trusted."},

	{CodeSecretUnknown, 422, "The Runtime has no such secret", "Ask the operator to add [secrets.HANDLE] to config.toml; of yoi run, give it with --secret HANDLE=file:PATH."},
	{CodeSecretRefused, 403, "The operator does not allow that use of the secret", "See as, hosts and workspaces of the secret in config.toml."},
	{CodeSecretUnavailable, 503, "The store did not give the secret's value", "See that the file, credential or command that config.toml names for it is there and that the daemon's user may use it."},
	{CodeSecretInvalid, 422, "The secret's value cannot be delivered so", "Deliver it as a file, or mend the value in its store."},

	{CodeBundleUnknown, 404, "No such configuration bundle", "See yoi bundle list, or store it: yoi bundle add DIRECTORY."},
	{CodeBundleInUse, 409, "Execution workspaces have the configuration bundle", "Remove them first: yoi ws list."},
	{CodeBundleInvalid, 422, "Not a usable configuration bundle", "Give a directory of files, directories and links that stay within it, up to 4096 entries and 32 MiB."},
	{CodeBundleCorrupt, 500, "The stored configuration bundle does not have its digest", "Remove it and store it anew: yoi bundle rm, yoi bundle add."},
	{CodeToolUnknown, 422, "This host has no such tool", "Name a program of the host's /usr/bin or /usr/local, its path, or coreutils, findutils, diffutils, binutils; see yoi policy explain."},

	{CodeCwdAbsolute, 422, "relative_cwd is an absolute path", "Give a path relative to the workspace root."},
	{CodeCwdEscape, 422, "relative_cwd leaves the workspace", "Give a path without .. components."},
	{CodeCwdSymlinkEscape, 422, "relative_cwd leaves the workspace by a symbolic link", "Name the real directory inside the workspace."},
	{CodeCwdMissing, 422, "relative_cwd does not exist", "Name a directory that exists in the workspace."},
	{CodeCwdNotDirectory, 422, "relative_cwd is not a directory", "Name a directory."},

	{CodeWorkerUnknown, 404, "No such Worker", "See yoi worker list."},
	{CodeWorkerNotRunning, 409, "The Worker has ended", "See yoi worker show for its outcome."},
	{CodeSignalInvalid, 400, "No such signal", "Use a name such as TERM, or a number from 1 to 64."},
	{CodeSessionUnknown, 404, "No such session", "See the sessions in yoi worker show --json."},
	{CodeSessionPolicyChanged, 409, "What the Worker is held by cannot be applied to a session", "Start the Worker again with this version, and enter that one."},
	{CodeWorkerNoTerminal, 409, "The Worker has no terminal to attach to", "Follow its output with yoi worker logs -f, or run a shell beside it with yoi worker exec; a terminal comes with yoi worker spawn --tty."},
	{CodeWorkerPaused, 409, "The Worker is paused", "Let it go on with yoi worker resume."},
	{CodePauseUnavailable, 503, "This host has no freezer for the Worker", "Run the helper in a delegated control group (Delegate=yes), or send the Worker STOP and CONT with yoi worker signal."},
	{CodeLaunchFailed, 500, "The sandbox could not be started", "Run yoi doctor."},
	{CodeNamespacesUnavailable, 503, "This host does not allow the needed namespaces", "Allow user namespaces: sysctl user.max_user_namespaces and kernel.apparmor_restrict_unprivileged_userns."},
	{CodeMountFailed, 500, "A mount of the sandbox could not be made", "Run yoi doctor."},
	{CodeSeccompUnavailable, 503, "This kernel has no seccomp filters", "Use a kernel with CONFIG_SECCOMP_FILTER."},
	{CodeSeccompInvalid, 400, "The seccomp policy is invalid", "Correct the call name that the message names."},
	{CodeIDRangeExhausted, 503, "No free uid range is left", "Stop some Workers, or enlarge the pool in config.toml."},
	{CodeIDMapUnavailable, 503, "The file system does not support idmapped mounts", "Put the Runtime root on ext4, xfs, btrfs or tmpfs of a kernel from 5.19 on."},
	{CodeKernelFeatureMissing, 503, "The kernel lacks a needed feature", "Use a newer kernel: yoi doctor names it."},
	{CodeServiceManager, 503, "The service manager does not take the worker", "See systemctl status and journalctl -b -p err; without systemd, start yoi-helper with --no-scopes."},

	{CodeLedgerBroken, 500, "The cleanup ledger's hash chain is broken", "Nothing is cleaned up until it is looked at: yoi ledger verify."},
	{CodeLedgerBusy, 409, "Another process is recovering this Runtime root", "Wait for it to end."},
	{CodeLedgerFailed, 500, "The cleanup ledger cannot be written", "Check the disk and the mount of the Runtime root."},
	{CodeRegistryFailed, 500, "The allocation registry cannot be used", "Check the disk; runtime.db is rebuilt from the ledger if it is moved away."},
	{CodeLeftoverForeign, 409, "Something at a ledger's place is not what the ledger made", "Look at it and remove it by hand."},
}
