-- Health of a PodDecoration. Its conditions Ready and Stalled say how far it is.
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
  if condition.type == "Ready" then
    hs.message = condition.message
    if condition.status == "True" then
      hs.status = "Healthy"
    end
  end
end

return hs
