-- Health of a CollaSet. Its conditions Ready and Stalled say how far it is. A set that a person has paused, and a rollout
-- that pauses at a step, are Suspended.
local hs = { status = "Progressing", message = "Waiting until the controller has seen the object" }

local generation = obj.metadata.generation
if obj.status == nil or obj.status.observedGeneration ~= generation then
  return hs
end

local by_type = {}
for _, condition in ipairs(obj.status.conditions or {}) do
  by_type[condition.type] = condition
end

local stalled, ready, update = by_type.Stalled, by_type.Ready, by_type.Update
if stalled ~= nil and stalled.status == "True" then
  hs.status = "Degraded"
  hs.message = stalled.message
elseif ready ~= nil then
  hs.message = ready.message
  if ready.status == "True" then
    hs.status = "Healthy"
  elseif ready.reason == "Paused" then
    hs.status = "Suspended"
  elseif ready.reason == "Updating" and update ~= nil and update.reason == "StepPaused" then
    hs.status = "Suspended"
    hs.message = update.message
  end
end

return hs
