package backend

import (
	"net/http"

	"yoi.dev/yoi-runtime/policy"
)

// The Backend's own codes. Others are the Runtime's, which keep their names.
const (
	CodeAuthenticationRequired policy.Code = "authentication_required"
	CodeLoginFailed            policy.Code = "login_failed"
	CodeForbidden              policy.Code = "forbidden"
	CodeCSRFRefused            policy.Code = "csrf_refused"
	CodeOriginRefused          policy.Code = "origin_refused"
	CodeHostRefused            policy.Code = "host_refused"
	CodeRateLimited            policy.Code = "rate_limited"
	CodeStreamsExhausted       policy.Code = "streams_exhausted"
	CodeWorkspaceUnknown       policy.Code = "workspace_unknown"
	CodeRemoteSource           policy.Code = "remote_source_refused"
	CodeStrategyNotAllowed     policy.Code = "strategy_not_allowed"
	CodeDirtyNotAllowed        policy.Code = "dirty_state_policy_not_allowed"
	CodeCleanupNotAllowed      policy.Code = "cleanup_policy_not_allowed"
	CodeNetworkNotAllowed      policy.Code = "network_not_allowed"
	CodeNetworkRuleNotAllowed  policy.Code = "network_rule_not_allowed"
	CodeNetworkRulesRequired   policy.Code = "network_rules_required"
	CodeLimitsNotAllowed       policy.Code = "limits_not_allowed"
	CodeWorkspaceQuota         policy.Code = "execution_workspace_quota"
	CodeAllocationRequired     policy.Code = "allocation_required"
	CodeIdempotencyConflict    policy.Code = "idempotency_conflict"
	CodeRequestPending         policy.Code = "request_pending"
	CodeCreationUnknown        policy.Code = "creation_unknown"
	CodeRuntimeUnreachable     policy.Code = "runtime_unreachable"
	CodeRuntimeFailed          policy.Code = "runtime_failed"
	CodeStoreFailed            policy.Code = "store_failed"
)

// Catalog returns every code that a problem document of the Backend can have, in
// the order of docs/backend.md. What a Runtime says under another code is told as
// runtime_failed, without its text.
func Catalog() []policy.Info { return append([]policy.Info(nil), catalog...) }

// catalog words the Runtime's codes anew: its hints are an operator's, who has a
// command line.
var catalog = []policy.Info{
	{Code: CodeAuthenticationRequired, Status: 401, Title: "Nobody is logged in", Hint: "Log in, or send a token as Authorization: Bearer."},
	{Code: CodeLoginFailed, Status: 401, Title: "The name or the password is wrong", Hint: "Try again, or ask an operator for a new password."},
	{Code: CodeForbidden, Status: 403, Title: "Your role does not allow this", Hint: "Ask an administrator of the workspace."},
	{Code: CodeCSRFRefused, Status: 403, Title: "The form is not from this session", Hint: "Load the page again and repeat."},
	{Code: CodeOriginRefused, Status: 403, Title: "The request comes from another site", Hint: "Use this site's own pages."},
	{Code: CodeHostRefused, Status: 421, Title: "The server does not answer under that name", Hint: "Use its configured address: listen.address or listen.origins."},
	{Code: CodeRateLimited, Status: 429, Title: "Too many requests", Hint: "Wait as long as Retry-After says."},
	{Code: CodeStreamsExhausted, Status: 503, Title: "Too many live streams are open", Hint: "Close a page that shows live output, or raise limits.streams."},

	{Code: policy.CodeBadRequest, Status: 400, Title: "The request is malformed", Hint: "Compare it with /api/openapi.json."},
	{Code: policy.CodeIDInvalid, Status: 400, Title: "An id is malformed", Hint: "Use the ids that the listings show."},
	{Code: policy.CodeRequestTooLarge, Status: 413, Title: "The request is too large", Hint: "Send less in one request."},
	{Code: policy.CodeNotFound, Status: 404, Title: "No such page", Hint: "Begin at the list of workspaces."},
	{Code: policy.CodeMethodNotAllowed, Status: 405, Title: "The resource does not have that method", Hint: "Compare it with /api/openapi.json."},
	{Code: policy.CodeCanceled, Status: 499, Title: "The request was canceled", Hint: "Start it again when ready."},
	{Code: CodeIdempotencyConflict, Status: 409, Title: "The idempotency key was used for another request", Hint: "Take a new key for a new request."},
	{Code: CodeRequestPending, Status: 409, Title: "The first request with this key is still under way", Hint: "Ask again in a moment."},

	{Code: CodeWorkspaceUnknown, Status: 404, Title: "No such workspace", Hint: "Choose one of yours."},
	{Code: policy.CodeRepositoryUnknown, Status: 404, Title: "No such repository in this workspace", Hint: "Choose one of the configured repositories."},
	{Code: CodeRemoteSource, Status: 422, Title: "Remote sources are not supported in this workspace", Hint: "Choose a repository that lies on the Runtime's host, or have allow_remote set."},
	{Code: policy.CodeSourceDirty, Status: 409, Title: "The source has uncommitted changes", Hint: "Commit or stash them in the source, or choose a dirty-state policy that takes them along, where the workspace allows one."},
	{Code: policy.CodeSourceChanged, Status: 409, Title: "The source changed meanwhile", Hint: "Try again when nobody writes to it."},
	{Code: policy.CodeSourceUnreadable, Status: 422, Title: "The source cannot be read", Hint: "Have its owner let the Runtime's user read it."},
	{Code: policy.CodeSourceNotRepository, Status: 422, Title: "The source is not a git repository", Hint: "Have the configuration name a repository."},
	{Code: policy.CodeSourceInvalid, Status: 422, Title: "The source's address is malformed", Hint: "Have the configuration corrected."},
	{Code: policy.CodeProtocolRefused, Status: 403, Title: "The Runtime does not allow the source's protocol", Hint: "Have cache.protocols of the Runtime extended."},
	{Code: policy.CodeRepositoryEmpty, Status: 409, Title: "The repository has no commit", Hint: "Commit something first."},
	{Code: policy.CodeFetchFailed, Status: 502, Title: "The source could not be fetched", Hint: "See that the source answers, and try again."},
	{Code: policy.CodeObjectsInvalid, Status: 502, Title: "The source has broken objects", Hint: "Run git fsck in the source."},
	{Code: policy.CodeObjectsUnavailable, Status: 502, Title: "Objects are missing and cannot be fetched", Hint: "See that the source answers, and try again."},
	{Code: policy.CodePartialCloneRefused, Status: 422, Title: "The source is a partial clone", Hint: "Have the configuration name the complete repository."},
	{Code: policy.CodeNestedRepository, Status: 422, Title: "The source has a repository inside it", Hint: "Choose the dirty-state policy clean_point_only."},
	{Code: policy.CodeSelectorInvalid, Status: 422, Title: "The selector is malformed", Hint: "Use branch:NAME, tag:NAME, commit:ID, ref:refs/… or a revision."},
	{Code: policy.CodeSelectorMissing, Status: 404, Title: "The selector names no commit", Hint: "Choose one of the branches and tags that the form offers."},
	{Code: policy.CodeSelectorAmbiguous, Status: 409, Title: "The selector names more than one commit", Hint: "Say branch:NAME, tag:NAME or a longer commit id."},
	{Code: policy.CodeSelectorNotCommit, Status: 422, Title: "The selector names something that is not a commit", Hint: "Name a commit, or a tag of one."},
	{Code: policy.CodeScopeInvalid, Status: 422, Title: "The path scope is malformed", Hint: "Give directories inside the repository, relative to its root."},
	{Code: policy.CodeScopeEmpty, Status: 422, Title: "A directory of the path scope does not exist there", Hint: "Name directories that the commit has."},
	{Code: policy.CodeStrategyUnknown, Status: 422, Title: "No such strategy", Hint: "Use auto."},
	{Code: policy.CodeStrategyUnsupported, Status: 422, Title: "The strategy is not possible on the Runtime's host", Hint: "Use auto, which chooses one that is."},
	{Code: CodeStrategyNotAllowed, Status: 422, Title: "The workspace does not allow that strategy", Hint: "Choose one that the form offers."},
	{Code: CodeDirtyNotAllowed, Status: 422, Title: "The workspace does not allow that dirty-state policy", Hint: "Choose one that the form offers."},
	{Code: CodeCleanupNotAllowed, Status: 422, Title: "The workspace does not allow that cleanup policy", Hint: "Choose one that the form offers."},
	{Code: CodeNetworkNotAllowed, Status: 422, Title: "The workspace does not allow that network mode", Hint: "Choose one that the form offers."},
	{Code: CodeNetworkRuleNotAllowed, Status: 422, Title: "The workspace does not allow that destination", Hint: "Choose among those that the form offers, or have network_rules extended."},
	{Code: CodeNetworkRulesRequired, Status: 422, Title: "No destination is chosen", Hint: "Choose at least one, or the network mode none."},
	{Code: CodeWorkspaceQuota, Status: 409, Title: "The workspace has as many Execution Workspaces as it may", Hint: "Clean up those that nobody needs."},
	{Code: CodeCreationUnknown, Status: 404, Title: "No such creation", Hint: "See the list of Execution Workspaces."},
	{Code: policy.CodePolicyInvalid, Status: 422, Title: "A policy is malformed", Hint: "Choose one that the form offers."},
	{Code: policy.CodeDiskFull, Status: 507, Title: "The Runtime's disk is full", Hint: "Clean up Execution Workspaces that nobody needs."},
	{Code: policy.CodeQuotaExceeded, Status: 507, Title: "The Execution Workspace has used up its quota", Hint: "Remove files in it, or make a new one."},

	{Code: CodeAllocationRequired, Status: 422, Title: "No Execution Workspace is named", Hint: "Create one first, and give its id as allocation_id."},
	{Code: policy.CodeAllocationUnknown, Status: 404, Title: "No such Execution Workspace", Hint: "Choose one from the list of this workspace."},
	{Code: policy.CodeAllocationNotActive, Status: 409, Title: "The Execution Workspace is removed, or about to be", Hint: "Create a new one."},
	{Code: policy.CodeAllocationInUse, Status: 409, Title: "A Worker runs in the Execution Workspace", Hint: "Wait for the Worker's end, stop it, or choose another Execution Workspace."},
	{Code: policy.CodeUncollectedWork, Status: 409, Title: "The Execution Workspace holds work that would be lost", Hint: "Look at its diff and commits, then clean up again and say that they may be lost."},
	{Code: policy.CodeCleanupIncomplete, Status: 500, Title: "Not everything could be removed", Hint: "Clean up again; if it stays, ask the Runtime's operator."},
	{Code: policy.CodeWorkspaceUnreadable, Status: 422, Title: "git cannot read what the Worker left", Hint: "Launch a Worker that repairs it, or clean up with loss."},
	{Code: policy.CodeResultTooLarge, Status: 413, Title: "The result is too large to show", Hint: "Look at single files inside, with a Worker."},
	{Code: policy.CodeNothingToCollect, Status: 409, Title: "There are no commits", Hint: "Look at the diff instead."},

	{Code: policy.CodeCwdAbsolute, Status: 422, Title: "The working directory is an absolute path", Hint: "Give relative_cwd as a path from the root of the Execution Workspace."},
	{Code: policy.CodeCwdEscape, Status: 422, Title: "The working directory leaves the Execution Workspace", Hint: "Give relative_cwd without .. components."},
	{Code: policy.CodeCwdSymlinkEscape, Status: 422, Title: "The working directory leaves the Execution Workspace by a symbolic link", Hint: "Name the real directory inside."},
	{Code: policy.CodeCwdMissing, Status: 422, Title: "The working directory does not exist", Hint: "Choose a directory from the tree."},
	{Code: policy.CodeCwdNotDirectory, Status: 422, Title: "The working directory is not a directory", Hint: "Choose a directory from the tree."},
	{Code: policy.CodeWorkerUnknown, Status: 404, Title: "No such Worker", Hint: "Choose one from the list of this workspace."},
	{Code: policy.CodeWorkerNotRunning, Status: 409, Title: "The Worker has ended", Hint: "See how it ended on its page."},
	{Code: policy.CodeCommandInvalid, Status: 422, Title: "The command is malformed", Hint: "Give a program and its arguments."},
	{Code: policy.CodeCommandNotFound, Status: 422, Title: "The command does not exist in the sandbox", Hint: "Name a program of the system or of the Execution Workspace."},
	{Code: policy.CodeCommandNotExecutable, Status: 422, Title: "The command cannot be executed", Hint: "Make the file executable, or start it with its interpreter."},
	{Code: policy.CodeEnvironmentInvalid, Status: 422, Title: "The environment is malformed", Hint: "Give NAME=VALUE, one to a line."},
	{Code: policy.CodeLimitsInvalid, Status: 422, Title: "A limit is out of range", Hint: "Correct the limit that the message names."},
	{Code: policy.CodeLimitsUnavailable, Status: 503, Title: "The Runtime's host cannot keep a limit", Hint: "Leave the limit out, or have control groups delegated to the Runtime."},
	{Code: CodeLimitsNotAllowed, Status: 422, Title: "A limit is above what the workspace allows", Hint: "Ask for less."},
	{Code: policy.CodeEgressUnavailable, Status: 503, Title: "The way out of the sandbox could not be opened", Hint: "Ask the Runtime's operator to run yoi doctor."},
	{Code: policy.CodeIDRangeExhausted, Status: 503, Title: "The Runtime has no place for another Worker", Hint: "Stop a Worker, or wait for one to end."},
	{Code: policy.CodeLaunchFailed, Status: 502, Title: "The sandbox could not be started", Hint: "Ask the Runtime's operator to run yoi doctor."},
	{Code: policy.CodeUnsupported, Status: 501, Title: "Not possible on the Runtime's host", Hint: "Ask the Runtime's operator to run yoi doctor."},

	{Code: CodeRuntimeUnreachable, Status: 503, Title: "The Runtime cannot be reached", Hint: "Try again in a moment; then ask its operator. Running Workers go on."},
	{Code: CodeRuntimeFailed, Status: 502, Title: "The Runtime could not do it", Hint: "Give the request's number to its operator: the cause is in the Backend's log."},
	{Code: CodeStoreFailed, Status: 500, Title: "The Backend's database cannot be used", Hint: "Give the request's number to the operator: the cause is in the Backend's log."},
	{Code: policy.CodeInternal, Status: 500, Title: "Something unexpected went wrong", Hint: "Give the request's number to the operator: the cause is in the Backend's log."},
}

var catalogIndex = func() map[policy.Code]policy.Info {
	m := make(map[policy.Code]policy.Info, len(catalog))
	for _, i := range catalog {
		if http.StatusText(i.Status) == "" && i.Status != 499 {
			panic("backend: no such status")
		}
		m[i.Code] = i
	}
	return m
}()

// refuse makes a diagnostic. The message must be safe to show.
func refuse(code policy.Code, format string, args ...any) *policy.Diagnostic {
	d := policy.Errorf(code, "", format, args...)
	d.Hint = "" // the catalog's, when it is shown
	return d
}
