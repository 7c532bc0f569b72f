-- Health of a PodTransitionRule. A rule without a Ready condition: it is in force when its condition Enforced is True.
local hs = { status = "Progressing", message = "Waiting until the controller has seen the object" }

local generation = obj.metadata.generation
if obj.status == nil or obj.status.observedGeneration ~= generation then
  return hs
end

for _, condition in ipairs(obj.status.conditions or {}) do
  if condition.type == "Stalled" and condition.status == "True" then
    hs.status = "Degraded"
    hs.message = condition.message
    return hs
  end
  if condition.type == "LedgerUsable" and condition.status == "False" then
    hs.status = "Degraded"
    hs.message = condition.message
    return hs
  end
  if condition.type == "Enforced" then
    hs.message = condition.message
    if condition.status == "True" then
      hs.status = "Healthy"
    elseif condition.reason ~= "NotEnforced" then
      -- The server writes the missing label itself; every other reason needs a person.
      hs.status = "Degraded"
    end
  end
end

return hs
