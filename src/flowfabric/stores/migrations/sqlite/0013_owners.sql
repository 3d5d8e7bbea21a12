-- Whose budgets and quotas are: a namespace's, or the operator's if it is empty. Ids have an owner from now on; what was
-- made for a namespace before belongs to it, and stays under its plain id.

ALTER TABLE ff_budget_policy ADD COLUMN namespace TEXT;
ALTER TABLE ff_quota_policy ADD COLUMN namespace TEXT;

UPDATE ff_budget_policy SET namespace = scope_id WHERE scope_type = 'namespace' AND scope_id <> '';

-- Budgets and limits of apps have ids that follow from their namespace and name (UUIDs of version 5), so nobody else
-- names them: they belong to the namespace of the runs that do, and so do the apps' budgets above them. Without such a
-- run nothing tells whose they are. Names that were written by hand may be anything: only ids are taken apart.
UPDATE ff_budget_policy SET namespace = named.owner
FROM (
    SELECT each.value AS name, min(namespace) AS owner
    FROM ff_exec_core, json_each(
        CASE WHEN budget_ids NOT GLOB '*[^-0-9a-f,]*' THEN '["' || replace(budget_ids, ',', '","') || '"]' END
    ) AS each
    WHERE budget_ids IS NOT NULL
    GROUP BY each.value
    HAVING count(DISTINCT namespace) = 1
) AS named
WHERE ff_budget_policy.namespace IS NULL AND scope_type = 'named' AND substr(budget_id, 15, 1) = '5'
    AND budget_id = named.name;

UPDATE ff_budget_policy SET namespace = above.owner
FROM (
    SELECT each.value AS name, min(namespace) AS owner
    FROM ff_budget_policy, json_each(
        CASE WHEN ancestor_ids NOT GLOB '*[^-0-9a-f,]*' THEN '["' || replace(ancestor_ids, ',', '","') || '"]' END
    ) AS each
    WHERE namespace IS NOT NULL AND ancestor_ids <> ''
    GROUP BY each.value
    HAVING count(DISTINCT namespace) = 1
) AS above
WHERE ff_budget_policy.namespace IS NULL AND scope_type = 'named' AND substr(budget_id, 15, 1) = '5'
    AND budget_id = above.name;

UPDATE ff_quota_policy SET namespace = named.owner
FROM (
    SELECT quota_policy_id AS name, min(namespace) AS owner
    FROM ff_exec_core
    WHERE quota_policy_id IS NOT NULL
    GROUP BY quota_policy_id
    HAVING count(DISTINCT namespace) = 1
) AS named
WHERE ff_quota_policy.namespace IS NULL AND substr(quota_policy_id, 15, 1) = '5' AND quota_policy_id = named.name;

CREATE INDEX ff_budget_policy_namespace_idx ON ff_budget_policy (namespace, budget_id) WHERE namespace IS NOT NULL;
CREATE INDEX ff_quota_policy_namespace_idx ON ff_quota_policy (namespace, quota_policy_id) WHERE namespace IS NOT NULL;

-- Whether an execution may hold slots of quotas that it does not name.
ALTER TABLE ff_exec_core ADD COLUMN guarded INTEGER;
